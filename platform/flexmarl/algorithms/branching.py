"""Which answers to a turn are tried together, and which of them the episode goes on with. Pure: no clock, no chance.

Invariant: every member's answer of every role is tried at least once, so that each has a score.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.contracts.specification.branch_controllers import (
    BRANCH_CONTROLLER,
    MOST_JOINTS,
    AtGrpoTreeOptions,
    BranchControllerOptions,
    NoBranchesOptions,
)

Joint = tuple[int, ...]
"""Whose answer each role that is asked gives: numbers of members."""

BranchSettings = TypeVar("BranchSettings", bound=BranchControllerOptions)


class BranchController(Plugin[BranchSettings], ABC):
    @abstractmethod
    def joints(self, members: int, roles: int) -> list[Joint]:
        """Return the joint answers that are tried, of so many members to as many roles as are asked at once."""

    @abstractmethod
    def carried(self, scores: Sequence[float]) -> int:
        """Return the place of the joint answer that continues the episode; `scores` are their means over roles."""


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


BRANCH_CONTROLLERS: Registry[BranchController[Any]] = Registry(BRANCH_CONTROLLER, (NoBranches, AtGrpoTree))


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
