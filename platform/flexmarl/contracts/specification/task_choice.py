"""Which tasks are drawn, and which groups of their episodes are trained on. Code: `flexmarl.algorithms`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.plugins import Kind, PluginOptions, Readiness
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.redundancies import Beyond

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


class TaskSamplerOptions(PluginOptions):
    """Which task an episode group plays."""


class UniformOptions(TaskSamplerOptions):
    """Every task seed is as likely as any other, at any time."""

    type: Literal["uniform"] = "uniform"


TASK_SAMPLER: Kind[TaskSamplerOptions] = Kind(
    "task_sampler", "/sampling/task_sampler", TaskSamplerOptions, (UniformOptions,)
)


class GroupFilterOptions(PluginOptions):
    """Which groups are trained on."""

    needs: ClassVar[Readiness] = Readiness.GROUP

    @property
    def most_draws(self) -> int:
        """Most draws per group that a step needs; 1: no group is replaced."""
        return 1


class NoFilterOptions(GroupFilterOptions):
    """All groups are trained on."""

    type: Literal["none"] = "none"

    needs: ClassVar[Readiness] = Readiness.ROW


class DropZeroVarianceOptions(GroupFilterOptions):
    """Only groups whose members differ in score are trained on."""

    type: Literal["drop_zero_variance"] = "drop_zero_variance"


class DynamicSamplingOptions(GroupFilterOptions):
    """Only groups whose members differ in score; a replacement task is drawn for each rejected group."""

    type: Literal["dynamic_sampling"] = "dynamic_sampling"
    draw_limit: int = Field(default=10, ge=2, le=1000)
    """Maximum draws per group needed; then the step continues with the groups it has."""

    @property
    def most_draws(self) -> int:
        """Most draws per group that a step needs."""
        return self.draw_limit

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse two ways of proposing more groups than a step needs."""
        if Beyond.GROUPS in spec.mechanisms.redundancy.beyond:
            yield Problem(
                pointer="/mechanisms/redundancy/type",
                code="not_with_dynamic_sampling",
                detail="dynamic_sampling draws a new group for each rejected one; with additional groups a step would "
                "have more groups than it needs.",
                hint="Set none or extra_members, or group_filter: drop_zero_variance in /sampling.",
            )


GROUP_FILTER: Kind[GroupFilterOptions] = Kind(
    "group_filter",
    "/sampling/group_filter",
    GroupFilterOptions,
    (NoFilterOptions, DropZeroVarianceOptions, DynamicSamplingOptions),
)
