"""Rules inside the algorithm: what its plug-ins refuse, references that never come, and members without peers."""

from collections.abc import Iterator
from typing import Any

from flexmarl.contracts.plugins import PluginOptions, Readiness
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.readiness import needs
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.kinds import KINDS
from flexmarl.contracts.specification.reference import NamedVersion, RenewedVersion


def learning_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what the algorithm of a specification breaks."""
    for options in plugins_of(spec):
        yield from options.refusals(spec)
    yield from _reference(spec)
    yield from _members(spec)
    yield from _turns(spec)


def _turns(spec: ExperimentSpec) -> Iterator[Problem]:
    """A turn is left out by its advantage, which the trainer must take as it comes, and by what its engine reported."""
    algorithm, sharing = spec.algorithm, spec.sampling.sharing
    if not spec.sampling.turn_quantile:
        return
    if algorithm.loss.paired or algorithm.advantage.has_critic:
        yield Problem(
            pointer="/sampling/turn_quantile",
            code="not_with_turns",
            detail="Turns are left out by an advantage of 0, which is none for pairs and for a critic.",
            hint="Set 0, or under /algorithm loss: ppo_clip and advantage: grpo.",
        )
    if sharing.on and sharing.foreign:
        yield Problem(
            pointer="/sampling/turn_quantile",
            code="not_with_sharing",
            detail="Nobody knows how probable what others said was to them.",
            hint="Set 0, or foreign: 0 in /sampling/sharing.",
        )


def _pairs(spec: ExperimentSpec) -> Iterator[Problem]:
    """Pairs need partners, and advantages that the whole group has given each member before some are left out."""
    sampling, members, advantage = spec.sampling, spec.batch.episodes_per_task, spec.algorithm.advantage
    if sampling.keep_rule != "pairs":
        return
    if sampling.keep_members is None:
        yield Problem(
            pointer="/sampling/keep_rule",
            code="not_read",
            detail="keep_rule says which members are kept, and all of them are.",
            hint="Set variance, or keep_members.",
        )
        return
    for pointer, value, even in (
        ("/sampling/keep_members", sampling.keep_members, sampling.keep_members - 1),
        ("/batch/episodes_per_task", members, members + 1),
    ):
        if value % 2:
            name = pointer.rpartition("/")[2]
            yield Problem(
                pointer=pointer,
                code="not_even",
                detail=f"Members are kept in pairs, and {name} {value} leaves one without a partner.",
                hint=f"Set {even}, or keep_rule: variance in /sampling.",
            )
    if advantage.needs is not Readiness.GROUP or spec.algorithm.loss.paired:
        yield Problem(
            pointer="/sampling/keep_rule",
            code="needs_group_advantage",
            detail="Members of pairs keep the advantages of a comparison with the whole group, and "
            f"{advantage.type} is none.",
            hint="Set variance, or under /algorithm advantage: {type: grpo}.",
        )


def plugins_of(spec: ExperimentSpec) -> tuple[PluginOptions, ...]:
    """Return the options of every plug-in that a specification names."""
    found = (_at(spec, kind.pointer.strip("/").split("/")) for kind in KINDS)
    return tuple(options for options in found if options is not None)


def _at(spec: ExperimentSpec, path: list[str]) -> PluginOptions | None:
    """Return the options at a path; None where an environment has no such setting."""
    found: Any = spec
    for name in path:
        found = getattr(found, name, None)
    return found if isinstance(found, PluginOptions) else None


def _reference(spec: ExperimentSpec) -> Iterator[Problem]:
    """A reference that nothing reads would be believed in; one that never comes, or goes too soon, is none."""
    reference, durability = spec.algorithm.kl.reference, spec.mechanisms.durability
    if not spec.algorithm.needs_reference and reference.type != "first":
        yield Problem(
            pointer="/algorithm/kl/reference/type",
            code="not_read",
            detail=f"The reference is {reference.type}, but nothing is compared with it.",
            hint="Set first, or kl.coefficient above 0.",
        )
    steps = spec.version_steps
    if isinstance(reference, NamedVersion) and reference.version >= steps:
        yield Problem(
            pointer="/algorithm/kl/reference/version",
            code="out_of_range",
            detail=f"Version {reference.version} would exist after step {reference.version}, but the run has "
            f"{steps} steps: no step would be compared with it.",
            hint=f"Set {steps - 1} or less, or the reference first." if steps > 1 else "Set the reference first.",
        )
    if isinstance(reference, RenewedVersion) and reference.every < durability.every:
        yield Problem(
            pointer="/algorithm/kl/reference/every",
            code="out_of_range",
            detail=f"After a failure, steps are repeated from a training state up to {durability.every} versions old, "
            "with the reference of each, so it must be kept at least as long.",
            hint=f"Set {durability.every} or more, or a lower every in /mechanisms/durability.",
        )


def _members(spec: ExperimentSpec) -> Iterator[Problem]:
    keep, members = spec.sampling.keep_members, spec.batch.episodes_per_task
    if keep is not None and keep >= members:
        yield Problem(
            pointer="/sampling/keep_members",
            code="out_of_range",
            detail=f"A group has {members} members, so keep_members {keep} drops none.",
            hint=f"Set {members - 1} or less, or remove it." if members > 2 else "Remove it.",
        )
    yield from _pairs(spec)
    comparing = [pointer for pointer, need in needs(spec).items() if need is Readiness.GROUP]
    if members == 1 and comparing:
        yield Problem(
            pointer="/batch/episodes_per_task",
            code="needs_peers",
            detail=f"{comparing[0].strip('/').replace('/', '.')} compares a task's episodes, so one is not enough.",
            hint="Set 2 or more, or under /algorithm advantage: {type: reinforce}.",
        )
