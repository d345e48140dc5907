"""An order is filled from a shelf; the basket is paid when it is full, or spoilt by a piece too many."""

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

from ..models import ShopShelfAction, ShopShelfObservation

ITEMS = ("apple", "bread", "mug")


class ShopShelfEnvironment(Environment):
    """Fill an order; only its end is rewarded."""

    def __init__(self) -> None:
        super().__init__()
        self._state = State(episode_id=str(uuid4()), step_count=0)
        self._missing: dict[str, int] = {}

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> ShopShelfObservation:
        """Take an order."""
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        rng = random.Random(seed)
        self._missing = {item: rng.randint(1, 4) for item in rng.sample(ITEMS, 2)}
        return ShopShelfObservation(missing=dict(self._missing))

    def step(self, action: ShopShelfAction) -> ShopShelfObservation:  # type: ignore[override]
        """Take pieces."""
        self._state.step_count += 1
        left = self._missing.get(action.item, 0) - action.pieces
        self._missing[action.item] = left
        full, spoilt = not any(self._missing.values()), left < 0
        reward = None if not full and not spoilt else float(full)
        return ShopShelfObservation(missing=dict(self._missing), done=full or spoilt, reward=reward)

    @property
    def state(self) -> State:
        return self._state
