"""How many members each group has. Code: `flexmarl.algorithms.member_counts`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.plugins import Kind, PluginOptions
from flexmarl.contracts.problems import Problem

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


class MemberCountOptions(PluginOptions):
    """How many members each episode group of a step has."""

    counts: ClassVar[bool] = True
    """Whether groups may have other numbers of members than `episodes_per_task`."""


class EqualOptions(MemberCountOptions):
    """Every group has `episodes_per_task` members."""

    type: Literal["equal"] = "equal"

    counts: ClassVar[bool] = False


class CountingOptions(MemberCountOptions):
    """Groups have as many members as earlier groups of their tasks suggest."""

    bias: ClassVar[str] = "Tasks count by their members where an aggregation counts tokens or rows; within one, none."

    least: int = Field(default=2, ge=2, le=256)
    """Fewest members of a group."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Numbers of members follow tasks that come again, in groups that are played and compared as a whole."""
        sampler, batch = spec.sampling.task_sampler, spec.batch
        if not sampler.chooses:
            yield Problem(
                pointer="/sampling/task_sampler/type",
                code="needs_tasks",
                detail=f"{self.type} counts by how tasks were solved before, and {sampler.type} knows none that comes "
                "again.",
                hint="Set greso with least_easy: 1 and least_hard: 1, which plays a set in order, or members: equal.",
            )
        if not self.least <= batch.episodes_per_task:
            yield Problem(
                pointer="/sampling/members/least",
                code="out_of_range",
                detail=f"The fewest members are {self.least}, and a group has {batch.episodes_per_task}.",
                hint=f"Set 2 to {batch.episodes_per_task}."
                if batch.episodes_per_task > 1
                else "Set at least 2 in /batch/episodes_per_task.",
            )
        if spec.mechanisms.redundancy.type != "none":
            yield _refused(
                "/mechanisms/redundancy/type",
                f"{spec.mechanisms.redundancy.type} proposes more than a step needs by one number of members.",
                "Set none",
            )
        if spec.sampling.keep_members is not None:
            yield _refused(
                "/sampling/keep_members",
                "keep_members trains on a fixed number of a group's members, and groups differ.",
                "Remove it",
            )


class FewerWhenSolvedOptions(CountingOptions):
    """Fewer members for tasks whose last group was solved well, as in DART. Experimental."""

    type: Literal["fewer_when_solved"] = "fewer_when_solved"
    threshold: float = Field(default=0.6, gt=0.0, le=1.0)
    """Share of the best score from which on a task's next group has fewer members."""


class MixedOutcomesOptions(CountingOptions):
    """Members where a predictor says that outcomes will differ, as in the first stage of TRACE. Experimental."""

    type: Literal["mixed_outcomes"] = "mixed_outcomes"
    most: int = Field(default=32, ge=2, le=256)
    """Most members of a group; at least `episodes_per_task` are allowed."""


def _refused(pointer: str, detail: str, hint: str) -> Problem:
    return Problem(
        pointer=pointer, code="not_with_members", detail=detail, hint=f"{hint}, or members: equal in /sampling."
    )


MEMBER_COUNT: Kind[MemberCountOptions] = Kind(
    "member_count",
    "/sampling/members",
    MemberCountOptions,
    (EqualOptions, FewerWhenSolvedOptions, MixedOutcomesOptions),
)
