"""What rollouts of other installations cannot be trained with: one refusal per broken rule, with a legal value.

Nobody knows with which probability another model said what it published. So a shared row counts as if the trained
weights had said it (ratio 1), which only a loss per row of one step can do; and its text must be all that a task's
environment needs to be played again.
"""

from collections.abc import Iterator

from flexmarl.contracts.plugins import Readiness
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.readiness import less_demanding, needs
from flexmarl.contracts.specification.dataset import DatasetTasks
from flexmarl.contracts.specification.experiment import ExperimentSpec


def sharing_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what sharing cannot be combined with."""
    if spec.sampling.sharing.on:
        yield from _environment(spec)
        yield from _members(spec)
        yield from _sampling(spec)
        yield from _objective(spec)


def _environment(spec: ExperimentSpec) -> Iterator[Problem]:
    environment = spec.environment
    if not environment.tells_task:
        yield _refused(
            "/environment/type",
            f"{environment.type} does not tell all of a task before it is played, so nobody else's replies can be "
            "checked against it.",
            "Set dataset, sums or hot_cold",
        )
    elif isinstance(environment, DatasetTasks) and environment.tools.servers:
        yield _refused(
            "/environment/tools/servers", "Replies with calls of tools are not exchanged.", "Remove the servers"
        )
    elif isinstance(environment, DatasetTasks) and environment.judges():
        yield _refused(
            "/environment/scores",
            "A judge has a seat in the episode, so its words would come from others like those of all seats.",
            "Remove the scores of judges",
        )
    for role, agent in spec.agents.items():
        if agent.external is not None:
            yield _refused(
                f"/agents/{role}/external",
                f"{role} uses an external model, whose replies are not this installation's to publish.",
                "Remove external",
            )


def _members(spec: ExperimentSpec) -> Iterator[Problem]:
    batch, foreign = spec.batch, spec.sampling.sharing.foreign
    if foreign > batch.episodes_per_task // 2:
        yield _refused(
            "/sampling/sharing/foreign",
            f"At most half of the {batch.episodes_per_task} members of a group may come from others; it is {foreign}.",
            f"Set {batch.episodes_per_task // 2}",
        )
    if batch.settle == "episode":
        yield _refused("/batch/settle", "Shared members are compared with their group.", "Set group")
    if spec.mechanisms.redundancy.type != "none":
        yield _refused(
            "/mechanisms/redundancy/type",
            "Redundant members would be cancelled as soon as shared ones, which take no time, are there.",
            "Set none",
        )
    if spec.mechanisms.ordered:
        yield _refused(
            "/mechanisms/ordered",
            "Ordered runs must be bitwise reproducible; what others publish is not.",
            "Set false",
        )


def _sampling(spec: ExperimentSpec) -> Iterator[Problem]:
    sampling = spec.sampling
    if sampling.copies:
        yield _refused(
            "/sampling/branch_controller/type", "The members of a group that branches share their turns.", "Set none"
        )
    if sampling.task_sampler.chooses:
        yield _refused(
            "/sampling/task_sampler/type",
            "It would take what other models solved for what this one can.",
            "Set uniform",
        )
    if sampling.replay.on:
        yield _refused(
            "/sampling/replay/type",
            "A shared row has no log-probabilities with which it could be trained again by later weights.",
            "Set none",
        )


def _objective(spec: ExperimentSpec) -> Iterator[Problem]:
    algorithm = spec.algorithm
    if algorithm.loss.paired:
        yield _refused(
            "/algorithm/loss/type",
            f"{algorithm.loss.type} weighs pairs of rows by their log-probabilities, which shared ones do not have.",
            "Set policy_gradient",
        )
    if algorithm.advantage.has_critic:
        yield _refused("/algorithm/advantage/type", "The critic would learn returns of other policies.", "Set grpo")
    if spec.reward.type != "environment":
        yield _refused(
            "/reward/type",
            "Shared members are scored by the environment before one is chosen.",
            "Set environment",
        )
    for pointer, need in needs(spec).items():
        if need is Readiness.BATCH:
            yield _refused(
                pointer,
                "It compares all rows of a step, and shared ones are others'.",
                f"Set {less_demanding(pointer)}",
            )
    if algorithm.correction.type == "mask_stale":
        yield _refused("/algorithm/correction/type", "Shared rows are of no version.", "Set none")
    if spec.mechanisms.trainer_protocol == "mini_batch":
        yield _refused(
            "/mechanisms/trainer_protocol",
            "With several steps per cohort the ratio of a shared row would stay 1 while that of the others moves.",
            "Set micro_batch",
        )


def _refused(pointer: str, detail: str, way_out: str) -> Problem:
    hint = f"{way_out}, or sharing: none in /sampling."
    return Problem(pointer=pointer, code="not_with_sharing", detail=detail, hint=hint)
