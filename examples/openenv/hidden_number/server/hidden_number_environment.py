"""A number is hidden; each guess is answered with higher or lower."""

import random
import re
from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

from ..models import HiddenNumberAction, HiddenNumberObservation


class HiddenNumberEnvironment(Environment):
    """Find a hidden number; a hit is worth 1."""

    SUPPORTS_CONCURRENT_SESSIONS: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(episode_id=str(uuid4()), step_count=0)
        self._number = self._left = 0

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, largest: int = 10, guesses: int = 4, **more: Any
    ) -> HiddenNumberObservation:
        """Hide a number from 1 to `largest`."""
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        self._number = random.Random(seed).randint(1, largest)
        self._left = guesses
        hint = f"A number from 1 to {largest} is hidden."
        return HiddenNumberObservation(hint=hint, guesses_left=self._left)

    def step(self, action: HiddenNumberAction) -> HiddenNumberObservation:  # type: ignore[override]
        """Take a guess."""
        self._state.step_count += 1
        self._left -= 1
        named = re.findall(r"\d+", action.guess)
        if not named:
            hint, hit = "That is no number.", False
        else:
            guess, hit = int(named[-1]), int(named[-1]) == self._number
            hint = "That is it." if hit else "It is higher." if guess < self._number else "It is lower."
        return HiddenNumberObservation(
            hint=hint, guesses_left=self._left, done=hit or self._left == 0, reward=1.0 if hit else 0.0,
            metadata={"number": self._number},
        )  # fmt: skip

    @property
    def state(self) -> State:
        return self._state
