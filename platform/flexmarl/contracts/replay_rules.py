"""What earlier groups cannot be trained again with: one refusal per broken rule, with a legal value.

A replayed row has the advantages that its group fixed, and the log-probabilities of the weights that sampled it. So the
loss must weigh it by p / p_engine, nothing may compare it with the rows of its new step, and a step must be that of one
cohort: only then is it known which step a group is trained in.
"""

from collections.abc import Iterator

from flexmarl.contracts.plugins import Readiness
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.readiness import needs
from flexmarl.contracts.specification.experiment import ExperimentSpec


def replay_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what an archive cannot be combined with."""
    if spec.sampling.replay.on:
        yield from _objective(spec)
        yield from _steps(spec)


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
                "Set grpo, or replay: none in /sampling.",
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


def _refused(pointer: str, detail: str, hint: str) -> Problem:
    return Problem(pointer=pointer, code="not_with_replay", detail=detail, hint=hint)
