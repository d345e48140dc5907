"""What the HTTP face asks of an engine, whichever library computes.

Invariants, kept by every engine: a reply is made by weights that were wholly held under the version and digest it
names; every submitted request is settled exactly once, by `step_policy` or `abort`; ids, log-probabilities and versions
stay aligned. Everything but `prepare`, `make_room` and `understand` of an engine runs on one thread.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from workers.rollout.engines.requests import Finished, ReplyProgress, Request
from workers.rollout.engines.wire import HeldVersion, Load, LoadRequest


class EngineFailedError(Exception):
    """The library beneath an engine cannot do it; the text says what it said and what to change."""


class Engine(Protocol):
    generated_tokens: int
    prompt_tokens: int

    @property
    def rows(self) -> int:
        """Return how many requests of a policy version are in generation at once."""

    @property
    def busy(self) -> bool:
        """Whether a step would do or settle something."""

    @property
    def cached_tokens(self) -> int | None:
        """Return how many prompt tokens were not computed, because an earlier request had left their keys.

        None without a prefix cache.
        """

    @property
    def cache_use(self) -> float | None:
        """Return the share of the attention cache in use; None where it has no size of its own."""

    def make_room(self, policy: str, keeps: Sequence[int]) -> None:
        """Make what a load beside `keeps` takes long for. Runs in a thread of its own, before that load."""

    def load(self, policy: str, version: int, digest: str, weights: Any, keeps: Sequence[int] = ()) -> None:
        """Hold a version from now on, beside one of `keeps`."""

    def has(self, policy: str, version: int, digest: str) -> bool:
        """Whether requests for exactly these weights are taken."""

    def holds(self) -> dict[str, HeldVersion]:
        """Return the newest version of each policy."""

    def versions(self) -> list[LoadRequest]:
        """Return what would have to be loaded, in this order, to hold what is held."""

    def let_go(self) -> int:
        """Forget every weight and every attention cache, and return their bytes; only while idle.

        Raises CannotSleepError.
        """

    def close(self, policy: str, hand_over: bool) -> list[Finished]:
        """Take no more requests of a policy; returns those that are ended now, for somebody else to answer.

        With `hand_over` that is all of them that another engine can carry on.
        """

    def forget(self, policy: str) -> bool:
        """Let a closed policy go once nothing of it runs. False: something does."""

    def understand(self, requests: list[Request]) -> None:
        """Make what `submit` would take long for: what replies must be. Runs in a thread of its own, before that.

        Raises NotHeldError or BadRequestError.
        """

    def submit(self, requests: list[Request]) -> None:
        """Queue requests, all or none; raise `NotHeldError` or `BadRequestError`."""

    def busy_policies(self) -> list[str]:
        """Return the policies that a step would advance."""

    def step_policy(self, policy: str) -> tuple[list[Finished], int]:
        """Advance a policy; return what ended and the number of tokens made."""

    def shed(self, policy: str, error: Exception) -> list[Finished]:
        """Hand back everything of a policy after memory ran out in its step, and take less of it at once from now on.

        Raises the error where the library beneath is of no use any more.
        """

    def rows_of(self, policy: str) -> int:
        """Return how many requests of a version of a policy are in generation at once, after what was shed."""

    def abort(self, ids: set[str]) -> list[Finished]:
        """End requests now, with the tokens they have; unknown ids are ignored."""

    def parts(self, told: Mapping[str, int]) -> list[ReplyProgress]:
        """Return what running replies have beyond the tokens that `told` counts."""

    def depth(self) -> Load:
        """Return how many requests run and wait."""
