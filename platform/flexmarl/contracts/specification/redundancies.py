"""Redundancies: more episodes than a step needs. Code: `flexmarl.algorithms.redundancy`."""

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from flexmarl.contracts.plugins import Kind, PluginOptions
from flexmarl.contracts.problems import Problem

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec

Fate = Literal["join", "keep", "continue", "pause", "cancel", "defer"]
"""What becomes of groups that a complete step leaves."""
_CARRIED = frozenset({"keep", "continue", "pause"})
"""Fates that take groups into a later step."""
_RESUMED = frozenset({"resume", "restart_turn"})
"""What can be done in flight with a reply that has left its engine."""


class Beyond(StrEnum):
    """Of what a redundancy proposes more than a step needs."""

    GROUPS = "groups"
    MEMBERS = "members"
    """Of each group."""
    ENVIRONMENTS = "environments"
    """Of each group: they replay its slowest members."""


class RedundancyOptions(PluginOptions):
    """More episodes than a step needs, so that it does not wait for the slowest."""

    @property
    def beyond(self) -> frozenset[Beyond]:
        """Of what it may propose more; the code of a redundancy is held to it."""
        return frozenset()

    @property
    def fate(self) -> Fate:
        """What becomes of groups that a complete step leaves."""
        return "cancel"

    @property
    def goes_on(self) -> bool:
        """Whether groups that a complete step leaves are played to their end, for a later step."""
        return self.fate in ("continue", "pause")

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse surplus where bits are promised: which episodes it is depends on timing."""
        if spec.mechanisms.ordered and self.beyond:
            yield Problem(
                pointer="/mechanisms/redundancy/type",
                code="ordered_is_on_policy",
                detail="Ordered runs are bitwise reproducible; which episodes are surplus depends on timing.",
                hint="Set none, or ordered: false.",
            )


class SurplusOptions(RedundancyOptions):
    """A redundancy that proposes more groups."""

    surplus: Fate = "cancel"
    """Groups left when the step is complete: those that settle before its gradients are done `join` it; settled ones
    are kept for the next step (`keep`); they continue for the next step (`continue`); or are cancelled. `pause`
    continues them too, but suspends them while the step trains; it needs `at_admission: trained` and `in_flight:
    resume`. `defer` cancels them and replays their tasks once they fill a whole step."""

    @property
    def beyond(self) -> frozenset[Beyond]:
        """Of what it may propose more."""
        return frozenset({Beyond.GROUPS})

    @property
    def fate(self) -> Fate:
        """What becomes of groups that a complete step leaves."""
        return self.surplus

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse surplus that outlives its step where no later one can train it."""
        yield from super().refusals(spec)
        yield from self._carried(spec)
        if self.surplus == "pause":
            yield from self._paused(spec)
        if spec.resources.engine_versions == 1 and self.goes_on:
            yield Problem(
                pointer="/mechanisms/redundancy/surplus",
                code="not_with_one_version",
                detail="Groups that continue for the next step keep their weights, and so do their engines.",
                hint="Set cancel, or engine_versions: 2 in /resources.",
            )

    def _carried(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        strict = [name for name in spec.trainable_policies() if spec.lag_policy_of(name).bound == 0]
        if self.surplus in _CARRIED and strict:
            yield Problem(
                pointer="/mechanisms/redundancy/surplus",
                code="needs_bound",
                detail=f"Surplus trained in a later step needs a bound of 1 or more; that of {strict[0]} is 0.",
                hint=f"Set join or cancel, or bound: 1 in {spec.lag_policy_pointer(strict[0])}.",
            )

    def _paused(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Surplus that stands still needs a next step that waits for the weights, and replies that take these."""
        lags = {name: spec.lag_policy_of(name) for name in spec.trainable_policies()}
        if all(lag.bound for lag in lags.values()) and all(lag.at_admission != "trained" for lag in lags.values()):
            first = next(iter(lags))
            yield Problem(
                pointer="/mechanisms/redundancy/surplus",
                code="needs_trained",
                detail="Paused surplus continues when the next step begins, which is before this step is trained: "
                f"at_admission is {lags[first].at_admission}.",
                hint=f"Set continue, or at_admission: trained in {spec.lag_policy_pointer(first)}.",
            )
        other = next((name for name, lag in lags.items() if lag.bound and lag.in_flight not in _RESUMED), None)
        if other is not None:
            yield Problem(
                pointer=f"{spec.lag_policy_pointer(other)}/in_flight",
                code="not_with_pause",
                detail="Paused surplus leaves the engines with its tokens and continues with the newest weights; "
                f"in_flight of {other} is {lags[other].in_flight}.",
                hint="Set resume, or surplus: continue in /mechanisms/redundancy.",
            )


class NoRedundancyOptions(RedundancyOptions):
    """No more than a step needs."""

    type: Literal["none"] = "none"


class ExtraGroupsOptions(SurplusOptions):
    """More groups than `tasks_per_step`; the step is complete when that many have settled."""

    type: Literal["extra_groups"] = "extra_groups"
    extra: int = Field(default=0, ge=0, le=4096)
    """How many more: groups beyond `tasks_per_step`, members beyond `episodes_per_task`, or environments per group."""
    share: float = Field(default=0.0, ge=0.0, le=64.0)
    """Additional groups as a ratio of `tasks_per_step`, on top of `extra`."""
    extra_members: int = Field(default=0, ge=0, le=4096)
    """Additional members in each group. A group settles when `episodes_per_task` members have finished, a step when
    `tasks_per_step` groups have settled."""

    @property
    def beyond(self) -> frozenset[Beyond]:
        """Of what it may propose more."""
        return super().beyond | ({Beyond.MEMBERS} if self.extra_members else set())

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse no groups at all."""
        yield from super().refusals(spec)
        if not self.extra and not self.share:
            yield Problem(
                pointer="/mechanisms/redundancy/extra",
                code="out_of_range",
                detail="extra_groups with extra 0 is contradictory.",
                hint="Set 1 or more, or type: none.",
            )


class ExtraMembersOptions(RedundancyOptions):
    """More members in each group; the slowest are cancelled once `episodes_per_task` have finished."""

    type: Literal["extra_members"] = "extra_members"
    extra: int = Field(default=1, ge=1, le=4096)
    """How many more: groups beyond `tasks_per_step`, members beyond `episodes_per_task`, or environments per group."""

    @property
    def beyond(self) -> frozenset[Beyond]:
        """Of what it may propose more."""
        return frozenset({Beyond.MEMBERS})


class ExtraEnvironmentsOptions(RedundancyOptions):
    """More environments in each group, which replay its slowest members; the first of the two to finish counts."""

    type: Literal["extra_environments"] = "extra_environments"
    extra: int = Field(default=1, ge=1, le=4096)
    """How many more: groups beyond `tasks_per_step`, members beyond `episodes_per_task`, or environments per group."""

    @property
    def beyond(self) -> frozenset[Beyond]:
        """Of what it may propose more."""
        return frozenset({Beyond.ENVIRONMENTS})

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse more environments than a group has members."""
        yield from super().refusals(spec)
        if self.extra > spec.batch.episodes_per_task:
            yield Problem(
                pointer="/mechanisms/redundancy/extra",
                code="out_of_range",
                detail=f"A group has {spec.batch.episodes_per_task} members, and no member has more than two "
                "environments.",
                hint=f"Set {spec.batch.episodes_per_task} or fewer.",
            )


REDUNDANCY: Kind[RedundancyOptions] = Kind(
    "redundancy",
    "/mechanisms/redundancy",
    RedundancyOptions,
    (NoRedundancyOptions, ExtraGroupsOptions, ExtraMembersOptions, ExtraEnvironmentsOptions),
)
