"""Which tasks are drawn, and which groups of their episodes are trained on. Code: `flexmarl.algorithms`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.plugins import Kind, PluginOptions, Readiness
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.redundancies import Beyond

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


MOST_TASKS = 1_000_000
"""Of a set that a sampler keeps a belief of."""


class TaskSamplerOptions(PluginOptions):
    """Which task an episode group plays."""

    chooses: ClassVar[bool] = False
    """Whether it chooses tasks from a fixed set by how earlier groups ended; else a draw's number is its task."""

    @property
    def own_tasks(self) -> int | None:
        """Return the size of the set that it chooses from; None: all training tasks that the environment lists."""
        return None


class UniformOptions(TaskSamplerOptions):
    """Every task seed is as likely as any other, at any time."""

    type: Literal["uniform"] = "uniform"


class ChoosingOptions(TaskSamplerOptions):
    """Chooses from a fixed set of tasks by how earlier groups ended."""

    tasks: int | None = Field(default=None, ge=2, le=MOST_TASKS)
    """Tasks that are chosen from. Absent: all training tasks of the environment, which must list them."""

    chooses: ClassVar[bool] = True
    bias: ClassVar[str] = "Tasks are played in other shares than in evaluations."

    @property
    def own_tasks(self) -> int | None:
        """Return the size of the set that it chooses from."""
        return self.tasks

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """A belief needs a fixed set of tasks, more of them than a step plays, and episodes that are whole."""
        listed, name = spec.environment.training_tasks, spec.environment.type
        if self.tasks is None and listed is None:
            yield _of_tasks(
                "needs_tasks",
                f"{self.type} chooses from a fixed set of tasks, and {name} makes up any number of them.",
                "Set how many it may choose from, such as 512, or type: uniform.",
            )
            return
        # A list that is not known yet, of a dataset before the run is created, is 0 long.
        tasks = self.tasks or listed or MOST_TASKS
        least = spec.batch.tasks_per_step
        most = min(listed or MOST_TASKS, MOST_TASKS)
        if not least <= tasks <= most:
            known = f"{name} lists {listed} training tasks" if listed else f"a set has at most {MOST_TASKS}"
            yield _of_tasks(
                "out_of_range",
                f"A step plays {least} different tasks, and {known}; the set has {tasks}.",
                f"Set {least} to {most}." if least <= most else f"Set at most {most} in /batch/tasks_per_step.",
            )
        if spec.batch.settle == "episode":
            yield Problem(
                pointer="/batch/settle",
                code="needs_group",
                detail=f"Episodes settle one by one, but {self.type} counts what a whole group earned.",
                hint="Set group, or task_sampler: uniform in /sampling.",
            )
        if spec.sampling.branches:
            yield Problem(
                pointer="/sampling/task_sampler/type",
                code="not_with_branches",
                detail=f"{self.type} counts how often a task's own episodes are solved; members that branch share one.",
                hint="Set uniform, or branch_controller: none in /sampling.",
            )


class VadeOptions(ChoosingOptions):
    """Prefers tasks that are solved about one time in three, by what earlier groups say of each. Experimental."""

    type: Literal["vade"] = "vade"
    keep_when_played: float = Field(default=0.2, ge=0.0, le=0.99)
    """Share of the evidence about a task that is kept when it is played again."""
    keep_when_idle: float = Field(default=0.999, gt=0.0, le=1.0)
    """Share of the evidence about a task that is kept in each step that does not play it."""


class GresoOptions(ChoosingOptions):
    """Passes over tasks whose last groups had no variance, the likelier the more there were. Experimental."""

    type: Literal["greso"] = "greso"
    easy: float = Field(default=0.5, gt=0.0, le=1.0)
    """Base of the probability to play a task after solved groups without variance, to the power of their number."""
    hard: float = Field(default=0.5, gt=0.0, le=1.0)
    """Base of the probability to play a task after missed groups without variance, to the power of their number."""
    target_easy: float = Field(default=0.083, ge=0.0, le=1.0)
    """Share of a step's groups that may be solved without variance before `easy` goes down."""
    target_hard: float = Field(default=0.167, ge=0.0, le=1.0)
    """Share of a step's groups that may be missed without variance before `hard` goes down."""
    move_by: float = Field(default=0.01, ge=0.0, le=0.5)
    """By how much `easy` and `hard` move in a step, once every task had its turn. 0: not at all."""
    least_easy: float = Field(default=0.1, ge=0.0, le=1.0)
    """Least probability to play a task again, however many of its groups were solved without variance."""
    least_hard: float = Field(default=0.4, ge=0.0, le=1.0)
    """Least probability to play a task again, however many of its groups were missed without variance."""

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse as any choice does, and groups of one, which never have a variance."""
        yield from super().refusals(spec)
        if spec.batch.episodes_per_task < 2:
            yield Problem(
                pointer="/batch/episodes_per_task",
                code="out_of_range",
                detail="greso compares the members of a group, and one member has nobody to be compared with.",
                hint="Set at least 2, or task_sampler: uniform in /sampling.",
            )


class FilterSolvedOptions(ChoosingOptions):
    """Leaves out tasks that are solved, until nothing else is left to play. Experimental."""

    type: Literal["filter_solved"] = "filter_solved"
    decay: float = Field(default=0.9, ge=0.0, le=0.999)
    """Share of the moving mean of a task's score that is kept when it is played again."""
    threshold: float = Field(default=0.95, gt=0.0, le=1.0)
    """Moving mean, as a share of the best score, above which a task is left out. 1: none ever is."""


class NearSuccessOptions(ChoosingOptions):
    """Prefers tasks whose predicted success is near a target, and plays a share in their order. Experimental."""

    type: Literal["near_success"] = "near_success"
    target: float = Field(default=0.5, ge=0.01, le=0.99)
    """Success, as a share of the best score: the tasks that are predicted nearest to it are played. At 0.5 these are
    the ones whose outcomes vary most."""
    in_order: float = Field(default=0.25, ge=0.0, le=1.0)
    """Share of the groups that play the set in its order instead, so that every task is played again. 1: all do."""


def _of_tasks(code: str, detail: str, hint: str) -> Problem:
    return Problem(pointer="/sampling/task_sampler/tasks", code=code, detail=detail, hint=hint)


TASK_SAMPLER: Kind[TaskSamplerOptions] = Kind(
    "task_sampler",
    "/sampling/task_sampler",
    TaskSamplerOptions,
    (UniformOptions, VadeOptions, GresoOptions, FilterSolvedOptions, NearSuccessOptions),
)


DROPPED = "Tasks whose members all did alike are left out, so a step averages over others."


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

    bias: ClassVar[str] = DROPPED


class DynamicSamplingOptions(GroupFilterOptions):
    """Only groups whose members differ in score; a replacement task is drawn for each rejected group; experimental."""

    type: Literal["dynamic_sampling"] = "dynamic_sampling"
    draw_limit: int = Field(default=10, ge=2, le=1000)
    """Maximum draws per group needed; then the step continues with the groups it has."""

    bias: ClassVar[str] = DROPPED

    @property
    def most_draws(self) -> int:
        """Most draws per group that a step needs."""
        return self.draw_limit

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse two ways of proposing more groups than a step needs, and tasks that depend on who settled first."""
        if Beyond.GROUPS in spec.mechanisms.redundancy.beyond:
            yield Problem(
                pointer="/mechanisms/redundancy/type",
                code="not_with_dynamic_sampling",
                detail="dynamic_sampling draws a new group for each rejected one; with additional groups a step would "
                "have more groups than it needs.",
                hint="Set none or extra_members, or group_filter: drop_zero_variance in /sampling.",
            )
        if spec.mechanisms.ordered and spec.sampling.task_sampler.chooses:
            yield Problem(
                pointer="/sampling/task_sampler/type",
                code="not_with_ordered",
                detail="What dynamic_sampling draws again in a step would be chosen by those groups of it that have "
                "settled, and in an ordered run nothing depends on which of them are the first.",
                hint="Set uniform, or group_filter: drop_zero_variance in /sampling, or ordered: false in /mechanisms.",
            )


GROUP_FILTER: Kind[GroupFilterOptions] = Kind(
    "group_filter",
    "/sampling/group_filter",
    GroupFilterOptions,
    (NoFilterOptions, DropZeroVarianceOptions, DynamicSamplingOptions),
)
