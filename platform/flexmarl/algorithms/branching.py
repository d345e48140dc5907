"""How the members of a group branch: which answers to a turn are tried together, or which episodes are continued.

Pure: no clock, no chance. Invariants: every member's answer of every role is tried at least once, so that each has a
score; no more continuations are chosen than there are members for.
"""

import heapq
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.algorithms.token_branching import Thresholds, first_in_doubt, width_of
from flexmarl.contracts.specification.branch_controllers import (
    BRANCH_CONTROLLER,
    MOST_JOINTS,
    AtGrpoTreeOptions,
    BranchControllerOptions,
    EchoOptions,
    NoBranchesOptions,
    TraceOptions,
)
from flexmarl.contracts.wire import TokenSignal

if TYPE_CHECKING:
    from flexmarl.algorithms.token_branching import Signals

Joint = tuple[int, ...]
"""Whose answer each role that is asked gives: numbers of members."""

BranchSettings = TypeVar("BranchSettings", bound=BranchControllerOptions)


@dataclass(frozen=True, slots=True)
class Continuable:
    """A prefix of a finished episode, after which others may go on."""

    member: int
    turns: int
    solved: bool
    """The episode's own outcome."""
    predicted: float
    """Chance that an episode that goes on from here is solved."""


class BranchController(Plugin[BranchSettings], ABC):
    @abstractmethod
    def joints(self, members: int, roles: int) -> list[Joint]:
        """Return the joint answers that are tried, of so many members to as many roles as are asked at once."""

    @abstractmethod
    def carried(self, scores: Sequence[float]) -> int:
        """Return the place of the joint answer that continues the episode; `scores` are their means over roles."""

    def chosen(self, prefixes: Sequence[Continuable], budget: int) -> list[int]:
        """Return the places of the prefixes that are continued, one for each continuation and at most `budget`."""
        raise LookupError("no episodes are continued where members branch otherwise, or not at all")


class NoBranches(BranchController[NoBranchesOptions]):
    """Members play episodes of their own, so nobody asks it."""

    Options = NoBranchesOptions

    def joints(self, members: int, roles: int) -> list[Joint]:
        raise LookupError("no answers are tried where members play episodes of their own")

    def carried(self, scores: Sequence[float]) -> int:
        raise LookupError("no answers are tried where members play episodes of their own")


class AtGrpoTree(BranchController[AtGrpoTreeOptions]):
    """Ties go to the lowest member."""

    Options = AtGrpoTreeOptions

    def joints(self, members: int, roles: int) -> list[Joint]:
        """Return the answers member by member, or all with all."""
        if self.options.joint == "cross":
            return list(itertools.product(range(members), repeat=roles))
        return [(member,) * roles for member in range(members)]

    def carried(self, scores: Sequence[float]) -> int:
        """Return the place of the first, or of the best one."""
        return 0 if self.options.carry == "first" else max(range(len(scores)), key=scores.__getitem__)


class TraceTree(BranchController[TraceOptions]):
    """TRACE's second stage: continuations go where one most likely ends otherwise than the episode it continues."""

    Options = TraceOptions

    def joints(self, members: int, roles: int) -> list[Joint]:
        raise LookupError("no answers are tried where members continue finished episodes")

    def carried(self, scores: Sequence[float]) -> int:
        raise LookupError("no answers are tried where members continue finished episodes")

    def chosen(self, prefixes: Sequence[Continuable], budget: int) -> list[int]:
        """Return the choice by which the sum of `contradicted` is largest."""
        return continued([alike(one) for one in prefixes], budget, self.options.most_per_prefix)


class EchoTree(BranchController[EchoOptions]):
    """ECHO's branches: the first token in doubt of each reply, in the order in which they are told."""

    Options = EchoOptions

    def joints(self, members: int, roles: int) -> list[Joint]:
        raise LookupError("no answers are tried where members continue replies")

    def carried(self, scores: Sequence[float]) -> int:
        raise LookupError("no answers are tried where members continue replies")

    def doubted(self, signals: "Signals", known: Sequence[float]) -> tuple[int, int] | None:
        """Return at which token of a reply others go on, and how many at most; None where none do.

        `known`: the thresholds that a command carries, none before there are any.
        """
        thresholds = Thresholds.of(known)
        place = None if thresholds is None else first_in_doubt(signals, thresholds)
        if thresholds is None or place is None:
            return None
        return place, width_of(TokenSignal._make(signals[place].tolist()), thresholds, self.options.most_width)


def checked_places(places: Sequence[int], prefixes: int, budget: int) -> Sequence[int]:
    """Return places of prefixes that can be continued. Raises ValueError for others, and for too many."""
    if len(places) > budget or not all(0 <= place < prefixes for place in places):
        raise ValueError(f"continuations at {list(places)}: at most {budget}, each at one of {prefixes} prefixes")
    return places


def alike(prefix: Continuable) -> float:
    """Return the chance that a continuation of a prefix ends as the episode did."""
    return prefix.predicted if prefix.solved else 1.0 - prefix.predicted


def contradicted(alike: float, continuations: int) -> float:
    """Return the chance that one continuation at least of so many ends otherwise than the episode did."""
    return 1.0 - float(alike**continuations)


def continued(chances: Sequence[float], budget: int, most: int) -> list[int]:
    """Distribute continuations over prefixes so that the sum of `contradicted` is largest; returns their places.

    `chances`: of each prefix, that a continuation ends as the episode did; `most`: continuations of a prefix. What
    another one adds falls with each, so the greedy choice is the best one. Ties go to the prefix that has fewer, then
    to the first.
    """
    waiting = [(-(1.0 - chance), 0, place) for place, chance in enumerate(chances)]
    heapq.heapify(waiting)
    found: list[int] = []
    while waiting and len(found) < budget:
        _, count, place = waiting[0]
        found.append(place)
        if count + 1 < most:
            chance = chances[place]
            heapq.heapreplace(waiting, (-(chance ** (count + 1)) * (1.0 - chance), count + 1, place))
        else:
            heapq.heappop(waiting)
    return found


BRANCH_CONTROLLERS: Registry[BranchController[Any]] = Registry(
    BRANCH_CONTROLLER, (NoBranches, AtGrpoTree, TraceTree, EchoTree)
)


def checked_joints(joints: Sequence[Joint], members: int, roles: int) -> Sequence[Joint]:
    """Return joint answers that can be tried and give every answer a score. Raises ValueError for others."""
    if len(joints) > MOST_JOINTS:
        raise ValueError(f"{len(joints)} joint answers of a turn; {MOST_JOINTS} are the most")
    everybody = set(range(members))
    if any(len(joint) != roles for joint in joints) or any(
        {joint[place] for joint in joints} != everybody for place in range(roles)
    ):
        raise ValueError(f"joint answers of {members} members to {roles} roles must try each answer of each member")
    return joints
