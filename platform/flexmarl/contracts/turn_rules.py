"""What a limit of turns cannot be combined with: one refusal per broken rule, with a legal value.

An episode that is cut off has no outcome of its own: it is unsolved and scores 0. So nothing may be lost that the
environment, or somebody else, would say of its turns, and there must be successes of the same task to be as long as.
"""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec

_NONE = "turn_limit: none in /sampling"


def turn_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what a limit of turns cannot be combined with."""
    if not spec.sampling.turn_limit.on:
        return
    sampler, facts = spec.sampling.task_sampler, spec.environment.facts()
    if not sampler.chooses:
        yield Problem(
            pointer="/sampling/task_sampler/type",
            code="needs_tasks",
            detail=f"Turns are limited by earlier successes, and {sampler.type} knows no task that comes again.",
            hint=f"Set greso with least_easy: 1 and least_hard: 1, which plays a set in order, or {_NONE}.",
        )
    if all(role.min_turns == role.max_turns for role in facts.roles):
        yield Problem(
            pointer="/sampling/turn_limit/type",
            code="fixed_turns",
            detail=f"Every episode of {spec.environment.type} has the same number of turns.",
            hint="Set none.",
        )
    if facts.rewards_turns:
        yield _refused(
            "/sampling/turn_limit/type",
            f"{spec.environment.type} rewards turns, and an episode that is cut off would lose what its turns earned.",
            "Set none.",
        )
    if spec.reward.type != "environment":
        yield _refused(
            "/reward/type",
            f"{spec.reward.type} scores whole episodes, and one that is cut off scores 0.",
            f"Set environment, or {_NONE}.",
        )
    if spec.mechanisms.ordered and spec.mechanisms.publication.type == "delayed":
        yield _refused(
            "/mechanisms/publication/type",
            "With delayed cohorts overlap, and how long successes were would depend on who settled first.",
            f"Set cohort, or {_NONE}.",
        )
    if spec.sampling.copies:
        yield _refused(
            "/sampling/branch_controller/type",
            f"{spec.sampling.branch_controller.type} goes on from turns of other members.",
            f"Set none, or {_NONE}.",
        )


def _refused(pointer: str, detail: str, hint: str) -> Problem:
    return Problem(pointer=pointer, code="not_with_turn_limit", detail=detail, hint=hint)
