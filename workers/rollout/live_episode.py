"""An episode being played, wherever that is."""

from typing import Protocol, runtime_checkable

from workers.rollout.environments.base import Ask, Outcome, Reply


class LiveEpisode(Protocol):
    """An episode being played, wherever that is. Leave it in every case."""

    task: dict[str, object]

    def asks(self) -> list[Ask]:
        """Return who must act now; empty when the episode is over."""

    async def score(self, replies: list[Reply]) -> None:
        """Have the replies to the last asks scored, where that takes long. Raises RewardMissing."""

    async def act(self, replies: list[Reply]) -> None:
        """Take the replies to the last asks, in their order, and move on."""

    def outcome(self) -> Outcome:
        """Return the account; only when `asks` is empty."""

    def leave(self, reason: str = "") -> None:
        """Let go of what it played in. `reason`: why the attempt failed; empty where it did not."""


@runtime_checkable
class RewardedLater(Protocol):
    """An episode that may be played to its end before it is known what it earned."""

    @property
    def awaits_reward(self) -> bool:
        """Whether its reward is all that it waits for; only when `asks` is empty."""

    async def rewarded(self) -> None:
        """Wait for the reward. Raises EnvironmentBroke where none arrives."""


@runtime_checkable
class RefusesCalls(Protocol):
    """An episode whose asks are calls from outside: one that no model can read is refused, and the episode goes on."""

    def refuse(self, ask: Ask, why: str) -> None:
        """Take back one of the last asks: no reply to it will come."""
