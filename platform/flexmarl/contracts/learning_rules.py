"""Rules inside the algorithm: settings that a loss reads, and ranges that would quietly do nothing."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.readiness import Readiness, needs
from flexmarl.contracts.reads import unread
from flexmarl.contracts.spec.algorithm import PAIRED, Loss
from flexmarl.contracts.spec.experiment import ExperimentSpec
from flexmarl.contracts.spec.reference import NamedVersion, RenewedVersion
from flexmarl.contracts.spec.shaping import Maporl, Marti, Overlong

WIDEST_ROW_CLIP = 0.05
"""Above this a clip of row ratios never bites: they are means over a row's tokens, within thousandths of 1."""


def learning_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what the algorithm of a specification breaks."""
    yield from unread(spec)
    yield from _row_clip(spec.algorithm.loss)
    yield from _one_step(spec)
    yield from _turns(spec)
    yield from _overlong(spec)
    yield from _critic(spec)
    yield from _pairs(spec)
    yield from _reference(spec)
    yield from _members(spec)
    yield from _draws(spec)


def _row_clip(loss: Loss) -> Iterator[Problem]:
    """Refuse a token's clip range under a loss of rows, where it would switch clipping off."""
    for name, published in (("clip_low", 0.0003), ("clip_high", 0.0004)):
        value = getattr(loss, name)
        if loss.type == "gspo" and value > WIDEST_ROW_CLIP:
            yield Problem(
                pointer=f"/algorithm/loss/{name}",
                code="out_of_range",
                detail=f"gspo clips the geometric mean of a row's ratios, which is within thousandths of 1; {name} "
                f"{value} would clip nothing.",
                hint=f"Set {published}, or at most {WIDEST_ROW_CLIP}.",
            )


def _one_step(spec: ExperimentSpec) -> Iterator[Problem]:
    """Where a cohort is one step, it is taken at the proximal policy itself, and the clip never bites."""
    several = spec.mechanisms.trainer_protocol == "mini_batch" and spec.batch.mini_batches > 1
    if spec.algorithm.loss.type == "decoupled_ppo" and not several:
        yield Problem(
            pointer="/algorithm/loss/type",
            code="needs_mini_batch",
            detail="decoupled_ppo clips what later steps of a cohort add to its first one, and here a cohort is one "
            "step.",
            hint="Set trainer_protocol: mini_batch in /mechanisms, or loss: policy_gradient with correction: "
            "truncated_importance, which is the same then.",
        )


def _turns(spec: ExperimentSpec) -> Iterator[Problem]:
    """Refuse what speaks of turns where episodes are compared, and what would be replaced by a shaping of turns."""
    advantage, shaping = spec.algorithm.advantage, spec.algorithm.shaping
    if advantage.gamma != 1.0 and not advantage.per_turn and advantage.type != "gae":
        yield Problem(
            pointer="/algorithm/advantage/gamma",
            code="needs_per_turn",
            detail="gamma discounts the reward-to-go of turns and needs per_turn.",
            hint="Set per_turn: true, type: gae, or gamma: 1.",
        )
    if advantage.turn_rewards == "joint" and not advantage.per_turn:
        yield Problem(
            pointer="/algorithm/advantage/turn_rewards",
            code="needs_per_turn",
            detail="joint adds up the turn rewards of all roles and needs per_turn.",
            hint="Set per_turn: true, or turn_rewards: own.",
        )
    if isinstance(shaping, Marti | Maporl) and not advantage.per_turn:
        yield Problem(
            pointer="/algorithm/shaping/type",
            code="needs_per_turn",
            detail=f"{shaping.type} shapes the scores of turns and needs per_turn.",
            hint="Set per_turn: true in /algorithm/advantage, or shaping: none.",
        )


def _critic(spec: ExperimentSpec) -> Iterator[Problem]:
    """A critic compares no rows, and adds up what later turns earn itself."""
    algorithm, advantage = spec.algorithm, spec.algorithm.advantage
    if advantage.type != "gae":
        return
    demands = (
        ("/algorithm/group_key", algorithm.group_key, "episode_group", "compares no rows"),
        *(
            (("/algorithm/shaping/type", algorithm.shaping.type, "none", "adds up what later turns earn itself"),)
            if isinstance(algorithm.shaping, Marti | Maporl)
            else ()
        ),
    )
    for pointer, value, wanted, why in demands:
        if value != wanted:
            yield Problem(
                pointer=pointer,
                code="not_with_gae",
                detail=f"gae {why}, so {value} means nothing beside it.",
                hint=f"Set {wanted}, or another advantage than gae.",
            )


def _pairs(spec: ExperimentSpec) -> Iterator[Problem]:
    """A preference is one between what a role said in two whole episodes of a group, seen from the reference."""
    algorithm, advantage = spec.algorithm, spec.algorithm.advantage
    if algorithm.loss.type not in PAIRED:
        return
    loss = algorithm.loss.type
    demands = (
        (
            "/algorithm/advantage/type",
            advantage.type,
            "best_worst",
            "compares the best member of a group with its worst",
        ),
        ("/algorithm/advantage/per_turn", advantage.per_turn, False, "compares what a role said in whole episodes"),
        (
            "/algorithm/group_key",
            algorithm.group_key,
            "episode_group",
            "compares a role with itself, episode by episode",
        ),
        ("/algorithm/correction", algorithm.correction, "none", "weighs rows in pairs, whoever sampled them"),
        ("/algorithm/kl/coefficient", algorithm.kl.coefficient, 0.0, "keeps near the reference by beta"),
    )
    for pointer, value, wanted, why in demands:
        if value != wanted:
            said, legal = (str(word).lower() if isinstance(word, bool) else word for word in (value, wanted))
            yield Problem(
                pointer=pointer,
                code="not_with_pairs",
                detail=f"{loss} {why}; {pointer.rpartition('/')[2]} is {said}.",
                hint=f"Set {legal}, or another loss than {loss}.",
            )


def _reference(spec: ExperimentSpec) -> Iterator[Problem]:
    """A reference that nothing reads would be believed in; one that never comes, or goes too soon, is none."""
    reference, durability = spec.algorithm.kl.reference, spec.mechanisms.durability
    if not spec.algorithm.needs_reference and reference.type != "first":
        yield Problem(
            pointer="/algorithm/kl/reference/type",
            code="not_read",
            detail=f"The reference is {reference.type}, and nothing is compared with it.",
            hint="Set first, or kl.coefficient above 0.",
        )
    steps = spec.budget.train_steps
    if spec.mechanisms.trainer_protocol == "mini_batch":
        steps *= spec.batch.mini_batches
    if isinstance(reference, NamedVersion) and reference.version >= steps:
        yield Problem(
            pointer="/algorithm/kl/reference/version",
            code="out_of_range",
            detail=f"Version {reference.version} would be there after step {reference.version}, and the run has "
            f"{steps}: no step would be compared with it.",
            hint=f"Set {steps - 1} or less, or the reference first." if steps > 1 else "Set the reference first.",
        )
    if isinstance(reference, RenewedVersion) and reference.every < durability.every:
        yield Problem(
            pointer="/algorithm/kl/reference/every",
            code="out_of_range",
            detail=f"Steps are taken again from a training state up to {durability.every} versions old, and need the "
            "reference of each: it must stay at least as long.",
            hint=f"Set {durability.every} or more, or a lower every in /mechanisms/durability.",
        )


def _overlong(spec: ExperimentSpec) -> Iterator[Problem]:
    shaping = spec.algorithm.shaping
    if not isinstance(shaping, Overlong):
        return
    trained = {role: agent.sampling.max_tokens for role, agent in spec.agents.items() if agent.trainable}
    shortest = min(trained, key=lambda role: trained[role], default=None)
    if shortest is not None and shaping.buffer_tokens > trained[shortest]:
        yield Problem(
            pointer="/algorithm/shaping/buffer_tokens",
            code="out_of_range",
            detail=f"A reply of {shortest} has {trained[shortest]} tokens at most, so all of it would be the buffer's.",
            hint=f"Set {trained[shortest]} or less.",
        )


def _members(spec: ExperimentSpec) -> Iterator[Problem]:
    keep, members = spec.sampling.keep_members, spec.batch.episodes_per_task
    if keep is not None and keep >= members:
        yield Problem(
            pointer="/sampling/keep_members",
            code="out_of_range",
            detail=f"A group has {members} members, so keeping {keep} leaves none out.",
            hint=f"Set {members - 1} or less, or remove it." if members > 2 else "Remove it.",
        )
    comparing = [pointer for pointer, need in needs(spec).items() if need is Readiness.GROUP]
    if members == 1 and comparing:
        yield Problem(
            pointer="/batch/episodes_per_task",
            code="needs_peers",
            detail=f"{comparing[0].strip('/').replace('/', '.')} compares a task's episodes, and one has no peers.",
            hint="Set 2 or more, or under /algorithm advantage: {type: reinforce}.",
        )


def _draws(spec: ExperimentSpec) -> Iterator[Problem]:
    """Refuse two ways of proposing more groups than a step needs."""
    if spec.sampling.group_filter == "dynamic_sampling" and spec.mechanisms.redundancy.type == "extra_groups":
        yield Problem(
            pointer="/mechanisms/redundancy/type",
            code="not_with_dynamic_sampling",
            detail="dynamic_sampling proposes another group for each one refused; groups proposed beforehand as well "
            "would make a step of more than it needs.",
            hint="Set none or extra_members, or group_filter: drop_zero_variance in /sampling.",
        )
