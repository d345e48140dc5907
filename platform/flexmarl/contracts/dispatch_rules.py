"""Where groups may be sent longest first: only where tasks are played more than once is anything known of them."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.task_choice import MOST_TASKS


def dispatch_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return a refusal where lengths of tasks cannot be remembered."""
    if spec.mechanisms.dispatch != "longest_first":
        return
    sampler, environment = spec.sampling.task_sampler, spec.environment
    tasks = (sampler.own_tasks if sampler.chooses else None) or environment.training_tasks
    if tasks is None:
        yield Problem(
            pointer="/mechanisms/dispatch",
            code="needs_tasks",
            detail=f"longest_first goes by earlier groups of the same task, and {environment.type} makes up a new task "
            "for every group.",
            hint="Set drawn, or a task sampler that chooses from a set of tasks.",
        )
    elif tasks > MOST_TASKS:
        yield Problem(
            pointer="/mechanisms/dispatch",
            code="out_of_range",
            detail=f"longest_first remembers the lengths of at most {MOST_TASKS} tasks; there are {tasks}.",
            hint="Set drawn, or a task sampler that chooses from fewer tasks.",
        )
