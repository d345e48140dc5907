"""An episode being played, wherever that is."""

from typing import Protocol

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
