"""What branching cannot be combined with: whatever speaks of members that play episodes of their own."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.environment import ENVIRONMENT
from flexmarl.contracts.specification.experiment import ExperimentSpec

MOST_JOINTS = 4096
"""Joint answers of one turn at most: each is tried on a copy of the episode."""


def branching_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what the branching of a specification breaks."""
    if spec.sampling.branches:
        yield from _environment(spec)
        yield from _joints(spec)
        yield from _whole_episodes(spec)


def _environment(spec: ExperimentSpec) -> Iterator[Problem]:
    """Every answer is tried on a copy of the episode, and earns something by itself."""
    environment = spec.environment
    if environment.isolated:
        others = [name for name, options in ENVIRONMENT.variants().items() if not options.isolated]
        yield Problem(
            pointer="/environment/type",
            code="not_copyable",
            detail=f"{environment.type} runs in processes whose state cannot be copied, so no turn can be answered "
            "several times.",
            hint=f"Set branch_controller: none, or an environment that can be copied: {', '.join(others)}.",
        )
    elif spec.sampling.branch_score == "turn" and not environment.facts().rewards_turns:
        yield Problem(
            pointer="/sampling/branch_score",
            code="needs_turn_rewards",
            detail=f"{environment.type} rewards episodes, not turns.",
            hint="Set played_out, or an environment that rewards turns: arithmetic, kitchen.",
        )


def _joints(spec: ExperimentSpec) -> Iterator[Problem]:
    if spec.sampling.branch_joint != "cross":
        return
    # An environment that opens with several roles asks them at once throughout.
    together = sum(role.opens for role in spec.environment.facts().roles)
    if together < 2:
        yield Problem(
            pointer="/sampling/branch_joint",
            code="nothing_to_cross",
            detail=f"{spec.environment.type} queries one role at a time, so there are no joint answers.",
            hint="Set aligned.",
        )
        return
    members = spec.batch.episodes_per_task
    if members**together > MOST_JOINTS:
        most = next(n for n in range(members, 0, -1) if n**together <= MOST_JOINTS)
        yield Problem(
            pointer="/batch/episodes_per_task",
            code="out_of_range",
            detail=f"cross combines every answer of {together} roles: {members} members give {members**together} "
            f"joint answers per turn; at most {MOST_JOINTS} are allowed.",
            hint=f"Set {most}, or branch_joint: aligned in /sampling.",
        )


def _whole_episodes(spec: ExperimentSpec) -> Iterator[Problem]:
    """Refuse what speaks of a member's own episode: there is one of them, played by all."""
    algorithm, batch, mechanisms = spec.algorithm, spec.batch, spec.mechanisms
    advantage = algorithm.advantage
    parallel, extra = mechanisms.parallel, mechanisms.redundancy.extra_members
    demands = (
        ("/algorithm/group_key", algorithm.group_key, ("agent_turn",), "compares answers to the same turn"),
        ("/algorithm/advantage/type", advantage.type, _compared(), "compares answers to the same turn"),
        ("/algorithm/advantage/per_turn", advantage.per_turn, (False,), "scores each answer by itself"),
        (
            "/algorithm/shaping/type",
            algorithm.shaping.type,
            ("none", "overlong"),
            "plays one history, which most answers of a member are not part of",
        ),
        (
            "/sampling/keep_members",
            spec.sampling.keep_members,
            (None,),
            "plays one episode, which gives all members their scores",
        ),
        ("/batch/settle", batch.settle, ("group",), "ends all members at once"),
        ("/batch/min_members", batch.min_members, (None,), "finishes all members or none"),
        ("/mechanisms/redundancy/type", mechanisms.redundancy.type, ("none", "extra_groups"), "needs all its members"),
        ("/mechanisms/redundancy/extra_members", extra, (0,), "needs all its members"),
        ("/mechanisms/parallel/members", parallel.members, (None,), "queries all members at once"),
        ("/mechanisms/parallel/turns", parallel.turns, ("own",), "queries all members at once"),
        ("/reward/type", spec.reward.type, ("environment",), "needs rewards while the episode plays"),
    )
    for pointer, value, legal, why in demands:
        if value not in legal:
            yield Problem(
                pointer=pointer,
                code="not_with_branches",
                detail=f"at_grpo_tree {why}; {pointer.rpartition('/')[2]} is {str(value).lower()}.",
                hint=f"Set {_words(legal)}, or branch_controller: none in /sampling.",
            )


def _compared() -> tuple[str, ...]:
    """Return the advantages that take each answer by itself."""
    return tuple(name for name, options in ADVANTAGE.variants().items() if options.judges_answers)


def _words(legal: tuple[object, ...]) -> str:
    return "nothing" if legal == (None,) else " or ".join(str(word).lower() for word in legal)
