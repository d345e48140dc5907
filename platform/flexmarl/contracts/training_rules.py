"""Rules between the trainer's protocol, the publication, the clock and what plug-ins need: refused at submit."""

from collections.abc import Iterator

from flexmarl.contracts.plugins import Readiness
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.readiness import less_demanding, needs
from flexmarl.contracts.specification.experiment import ExperimentSpec

STREAMING = ("micro_batch", "mini_batch", "per_group")
"""Protocols that take gradients while the rest of the cohort still plays."""


def training_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what the trainer's side of a specification breaks."""
    yield from _back_ends(spec)
    yield from _readiness(spec)
    yield from _mini_batches(spec)
    yield from _lag(spec)
    yield from _clock(spec)
    yield from _durability(spec)
    yield from _settle(spec)
    yield from _checkpoints(spec)


def _back_ends(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what the transformers back end cannot do; what `auto` takes a folder for is known where it is read."""
    for name, policy in spec.policies.items():
        where = f"/policies/{name}/trainer"
        if policy.trainer != "transformers":
            continue
        if spec.mechanisms.ordered:
            yield Problem(
                pointer=where,
                code="not_with_ordered",
                detail="Only the native trainer gives the ordered sums of bitwise reproducible runs.",
                hint="Set native, or ordered: false in /mechanisms.",
            )


def _readiness(spec: ExperimentSpec) -> Iterator[Problem]:
    protocol = spec.mechanisms.trainer_protocol
    for where, need in needs(spec).items():
        if need is Readiness.BATCH and protocol in STREAMING:
            yield Problem(
                pointer="/mechanisms/trainer_protocol",
                code="needs_batch",
                detail=f"{protocol} computes gradients while the cohort is still playing, but the plug-in at {where} "
                "needs the whole batch first.",
                hint=f"Set batch, or choose a plug-in that needs only the group, such as {less_demanding(where)}.",
            )


def _mini_batches(spec: ExperimentSpec) -> Iterator[Problem]:
    batch = spec.batch
    if spec.mechanisms.trainer_protocol != "mini_batch":
        return
    if batch.mini_batches > batch.tasks_per_step:
        yield Problem(
            pointer="/batch/mini_batches",
            code="out_of_range",
            detail=f"mini_batches must be at most tasks_per_step, which is {batch.tasks_per_step}.",
            hint=f"Set {batch.tasks_per_step}.",
        )
    if batch.min_rows > 1:
        yield Problem(
            pointer="/batch/min_rows",
            code="not_with_mini_batch",
            detail="mini_batch steps on every slice of the cohort; no gradient is carried into the next cohort.",
            hint="Set 1, or the protocol micro_batch.",
        )


def _lag(spec: ExperimentSpec) -> Iterator[Problem]:
    """Several steps on one cohort, and cohorts that start before the last one stepped, train on older rows."""
    mechanisms, batch = spec.mechanisms, spec.batch
    steps = batch.mini_batches if mechanisms.trainer_protocol == "mini_batch" else 1
    delayed = mechanisms.publication.type == "delayed"
    needed = steps - 1 + (steps if delayed else 0)
    parts = [f"{steps} optimizer steps per cohort"] * (steps > 1) + ["publication delayed"] * delayed
    ways = [str(needed), *["fewer mini_batches"] * (steps > 1), *["publication: cohort"] * delayed]
    for name in spec.trainable_policies():
        bound = spec.lag_policy_of(name).bound
        if bound < needed:
            own = spec.policies[name].lag_policy is not None
            yield Problem(
                pointer=f"/policies/{name}/lag_policy/bound" if own else "/mechanisms/lag_policy/bound",
                code="needs_bound",
                detail=f"With {' and '.join(parts)}, {name} is trained on rows up to {needed} "
                f"{'version' if needed == 1 else 'versions'} old; its bound is {bound}.",
                hint=f"Set {', or '.join(ways)}.",
            )


def _clock(spec: ExperimentSpec) -> Iterator[Problem]:
    mechanisms = spec.mechanisms
    if not mechanisms.policy_clock:
        return
    if mechanisms.trainer_protocol not in ("micro_batch", "per_group"):
        yield Problem(
            pointer="/mechanisms/trainer_protocol",
            code="not_with_policy_clock",
            detail="policy_clock counts rows as they are accumulated while the cohort is playing.",
            hint="Set micro_batch or per_group.",
        )
    if mechanisms.publication.type != "cohort":
        yield Problem(
            pointer="/mechanisms/publication/type",
            code="not_with_policy_clock",
            detail="With policy_clock, the next served version is known only when the cohort is settled.",
            hint="Set cohort.",
        )
    if spec.batch.min_rows == 1:
        yield Problem(
            pointer="/batch/min_rows",
            code="needs_min_rows",
            detail="policy_clock steps as soon as min_rows rows are accumulated, which is 1 here.",
            hint="Set the rows of a policy's step, such as half the rows of a cohort.",
        )
    if mechanisms.ordered:
        yield Problem(
            pointer="/mechanisms/ordered",
            code="not_with_policy_clock",
            detail="policy_clock depends on the order of arrival, which ordered runs exclude.",
            hint="Set false.",
        )


def _durability(spec: ExperimentSpec) -> Iterator[Problem]:
    durability = spec.mechanisms.durability
    if (durability.type == "every_k") == (durability.every > 1):
        return
    by_steps = durability.type == "every_k"
    yield Problem(
        pointer="/mechanisms/durability/every",
        code="out_of_range",
        detail=f"{durability.type} with every {durability.every} is contradictory.",
        hint="Set 2 or more, or type: every_step." if by_steps else "Set 1, or type: every_k.",
    )


def _settle(spec: ExperimentSpec) -> Iterator[Problem]:
    """Rows of an episode are trained before its group is complete: nothing may look at the group any more."""
    if spec.batch.settle != "episode":
        return
    for where, need in needs(spec).items():
        if need.coarseness > Readiness.EPISODE.coarseness:
            yield Problem(
                pointer="/batch/settle",
                code="needs_group",
                detail=f"Episodes settle one by one, but the plug-in at {where} needs the whole {need}.",
                hint="Set group, or choose plug-ins that need only the episode, such as reinforce and no filter.",
            )
    for pointer, what in _whole_groups(spec):
        yield Problem(
            pointer=pointer,
            code="not_with_settle_episode",
            detail=f"Episodes settle one by one, but {what} applies to whole groups.",
            hint="Remove it, or settle: group in /batch.",
        )


def _whole_groups(spec: ExperimentSpec) -> Iterator[tuple[str, str]]:
    mechanisms, batch = spec.mechanisms, spec.batch
    if mechanisms.trainer_protocol in ("batch", "mini_batch"):
        yield "/mechanisms/trainer_protocol", mechanisms.trainer_protocol
    if mechanisms.ordered:
        yield "/mechanisms/ordered", "ordered"
    if mechanisms.redundancy.beyond:
        yield "/mechanisms/redundancy/type", mechanisms.redundancy.type
    if batch.min_members is not None:
        yield "/batch/min_members", "min_members"
    if batch.incomplete_group != "drop_group":
        yield "/batch/incomplete_group", batch.incomplete_group
    for name in spec.trainable_policies():
        lag = spec.lag_policy_of(name)
        where = "/mechanisms/lag_policy" if spec.policies[name].lag_policy is None else f"/policies/{name}/lag_policy"
        if lag.in_flight == "discard":
            yield f"{where}/in_flight", "discard"
        if lag.at_cut == "refresh":
            yield f"{where}/at_cut", "refresh"


def _checkpoints(spec: ExperimentSpec) -> Iterator[Problem]:
    rules = spec.checkpoints
    if rules.keep_every is None or rules.keep_every % rules.every_steps == 0:
        return
    near = max(1, round(rules.keep_every / rules.every_steps)) * rules.every_steps
    yield Problem(
        pointer="/checkpoints/keep_every",
        code="not_a_multiple",
        detail=f"keep_every is {rules.keep_every}, and checkpoints are written every {rules.every_steps} steps: "
        "it must be a multiple of every_steps.",
        hint=f"Set {near}.",
    )
