"""How many more episodes a step proposes than it needs. Pure: decided once for a run, from the sizes of a step.

What becomes of the surplus is the core's part, by the fate that the options name.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.contracts.specification.redundancies import (
    REDUNDANCY,
    Beyond,
    ExtraEnvironmentsOptions,
    ExtraGroupsOptions,
    ExtraMembersOptions,
    NoRedundancyOptions,
    RedundancyOptions,
)


@dataclass(frozen=True, slots=True)
class Extra:
    """What is proposed beyond what a step needs."""

    groups: int = 0
    members: int = 0
    """Of each group."""
    environments: int = 0
    """Of each group, for its slowest members."""


RedundancySettings = TypeVar("RedundancySettings", bound=RedundancyOptions)


class Redundancy(Plugin[RedundancySettings], ABC):
    @abstractmethod
    def extra(self, groups: int, members: int) -> Extra:
        """Return what a step of so many groups of so many members proposes beyond them."""


class NoRedundancy(Redundancy[NoRedundancyOptions]):
    Options = NoRedundancyOptions

    def extra(self, groups: int, members: int) -> Extra:
        return Extra()


class ExtraGroups(Redundancy[ExtraGroupsOptions]):
    Options = ExtraGroupsOptions

    def extra(self, groups: int, members: int) -> Extra:
        return Extra(self.options.extra + round(self.options.share * groups), self.options.extra_members)


class ExtraMembers(Redundancy[ExtraMembersOptions]):
    Options = ExtraMembersOptions

    def extra(self, groups: int, members: int) -> Extra:
        return Extra(members=self.options.extra)


class ExtraEnvironments(Redundancy[ExtraEnvironmentsOptions]):
    Options = ExtraEnvironmentsOptions

    def extra(self, groups: int, members: int) -> Extra:
        return Extra(environments=self.options.extra)


REDUNDANCIES: Registry[Redundancy[Any]] = Registry(
    REDUNDANCY, (NoRedundancy, ExtraGroups, ExtraMembers, ExtraEnvironments)
)


def extra_of(options: RedundancyOptions, groups: int, members: int) -> Extra:
    """Return what a redundancy proposes. Raises ValueError for what its options rule out, or nobody can play."""
    extra = REDUNDANCIES.make(options).extra(groups, members)
    amounts = {Beyond.GROUPS: extra.groups, Beyond.MEMBERS: extra.members, Beyond.ENVIRONMENTS: extra.environments}
    for unit, amount in amounts.items():
        if amount < 0 or (amount and unit not in options.beyond):
            raise ValueError(f"{options.type} proposes {amount} more {unit}, which its options do not allow")
    if extra.environments > members:
        raise ValueError(f"{options.type} proposes {extra.environments} environments for {members} members")
    return extra
