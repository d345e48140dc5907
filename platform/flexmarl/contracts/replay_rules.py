"""What earlier rows cannot be trained again with: one refusal per broken rule, with a legal value.

A replayed row has the advantages that its group fixed, and the log-probabilities of the weights that sampled it. So the
loss must weigh it by p / p_engine, nothing may compare it with the rows of its new step, and a step must be that of one
cohort: only then is it known which step a group is trained in.
"""

from collections.abc import Iterator

from flexmarl.contracts.plugins import Readiness
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.readiness import less_demanding, needs
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.redundancies import Beyond


def replay_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what an archive, or a pool of successes, cannot be combined with."""
    if spec.sampling.replay.on:
        yield from _objective(spec)
        yield from _steps(spec)
    if spec.sampling.replay.rescues:
        yield from _rescue(spec)
        yield from _rescued_groups(spec)


def _objective(spec: ExperimentSpec) -> Iterator[Problem]:
    algorithm, replay = spec.algorithm, spec.sampling.replay
    loss, correction = algorithm.loss, algorithm.correction
    if loss.paired:
        yield _refused(
            "/algorithm/loss/type",
            f"{loss.type} weights pairs of rows, whichever version sampled them.",
            "Set ppo_clip, or replay: none in /sampling.",
        )
    elif not loss.has_ratio and not correction.weighs:
        yield Problem(
            pointer="/algorithm/correction/type",
            code="needs_correction",
            detail=f"Replayed rows were sampled by weights up to {replay.max_age} versions older, and {loss.type} with "
            f"correction {correction.type} would count them as if the trained ones had.",
            hint="Set truncated_importance, or loss: ppo_clip, or replay: none in /sampling.",
        )
    if correction.type == "mask_stale":
        yield _refused(
            "/algorithm/correction/type",
            "mask_stale masks older tokens, and all tokens of replayed rows are older.",
            "Set truncated_importance, or replay: none in /sampling.",
        )
    if algorithm.advantage.has_critic:
        yield _refused(
            "/algorithm/advantage/type",
            f"{algorithm.advantage.type} computes advantages while it trains, and its critic would learn the returns "
            "of older policies.",
            "Set grpo, or replay: none in /sampling.",
        )
    for pointer, need in needs(spec).items():
        if need is Readiness.BATCH:
            yield _refused(
                pointer,
                f"The plug-in at {pointer} compares all rows of a step, and replayed ones were compared in theirs.",
                f"Set {less_demanding(pointer)}, or replay: none in /sampling.",
            )


def _steps(spec: ExperimentSpec) -> Iterator[Problem]:
    mechanisms, batch = spec.mechanisms, spec.batch
    if mechanisms.trainer_protocol == "mini_batch":
        yield _refused(
            "/mechanisms/trainer_protocol",
            "mini_batch takes several optimizer steps per cohort; an archive is drawn from once per step of a cohort.",
            "Set micro_batch, or replay: none in /sampling.",
        )
    if mechanisms.policy_clock:
        yield _refused(
            "/mechanisms/policy_clock",
            "With policy_clock a step may be taken before its cohort is settled, when nothing is drawn yet.",
            "Set false, or replay: none in /sampling.",
        )
    if batch.min_rows > 1:
        yield _refused(
            "/batch/min_rows",
            f"min_rows {batch.min_rows} may carry a gradient into the next step, where a group could count twice.",
            "Set 1, or replay: none in /sampling.",
        )
    if batch.settle == "episode":
        yield _refused(
            "/batch/settle",
            "Whole groups are replayed, and here episodes settle one by one.",
            "Set group, or replay: none in /sampling.",
        )


def _rescue(spec: ExperimentSpec) -> Iterator[Problem]:
    """A success stands in a later group of its task, which is compared as a whole."""
    sampling = spec.sampling
    if not sampling.task_sampler.chooses:
        yield Problem(
            pointer="/sampling/task_sampler/type",
            code="needs_tasks",
            detail=f"rescue stores successes by task, and {sampling.task_sampler.type} knows no task that comes again.",
            hint="Set greso with least_easy: 1 and least_hard: 1, which plays a set in order, or replay: none.",
        )
    if spec.algorithm.advantage.needs is not Readiness.GROUP:
        yield Problem(
            pointer="/algorithm/advantage/type",
            code="needs_group_advantage",
            detail=f"{spec.algorithm.advantage.type} compares no group, so a success in one changes nothing.",
            hint="Set grpo, or replay: none in /sampling.",
        )
    if spec.batch.episodes_per_task < 2:
        yield Problem(
            pointer="/batch/episodes_per_task",
            code="out_of_range",
            detail="A success takes the place of one member, and nobody is left to be compared with it.",
            hint="Set at least 2, or replay: none in /sampling.",
        )


def _rescued_groups(spec: ExperimentSpec) -> Iterator[Problem]:
    mechanisms, sampling = spec.mechanisms, spec.sampling
    if sampling.keep_members is not None:
        yield _refused(
            "/sampling/keep_members",
            "A success stands for a member that is left out, and keep_members leaves out others.",
            "Remove it, or set replay: none in /sampling.",
        )
    if spec.algorithm.shaping.type != "none":
        yield _refused(
            "/algorithm/shaping/type",
            f"{spec.algorithm.shaping.type} reads more of an episode than is stored of a success.",
            "Set none, or replay: none in /sampling.",
        )
    if Beyond.GROUPS in mechanisms.redundancy.beyond:
        yield _refused(
            "/mechanisms/redundancy/type",
            "A group that is handed on to the next step would take a success along that is too old there.",
            "Set none, or replay: none in /sampling.",
        )
    if mechanisms.ordered and mechanisms.publication.type == "delayed":
        yield _refused(
            "/mechanisms/publication/type",
            "With delayed cohorts overlap, and which successes are stored would depend on who settled first.",
            "Set cohort, or replay: none in /sampling.",
        )


def _refused(pointer: str, detail: str, hint: str) -> Problem:
    return Problem(pointer=pointer, code="not_with_replay", detail=detail, hint=hint)
