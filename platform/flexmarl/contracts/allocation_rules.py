"""Who is trained on which trainer devices: one refusal per broken rule, with a legal value."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.spec.experiment import ExperimentSpec
from flexmarl.contracts.spec.team import Lora

_WHOLE = {"advantage": "gae", "loss": "online_dpo"}
"""Slot of the algorithm -> the type whose gradient of a row needs other rows of the micro-batch."""


def allocation_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return every broken rule of who is trained where."""
    yield from _gangs(spec)
    yield from _homes(spec)
    if spec.mechanisms.allocation.type == "static":
        yield from _static(spec)


def _homes(spec: ExperimentSpec) -> Iterator[Problem]:
    """Chosen devices are those of the run, as many as the policy takes, and only where they do not change."""
    allocation, devices = spec.mechanisms.allocation, spec.resources.training_devices
    for name, places in allocation.homes.items():
        where = f"/mechanisms/allocation/homes/{name}"
        if allocation.type != "static":
            yield Problem(
                pointer=where,
                code="not_read",
                detail="Devices on demand are chosen as it goes; only static ones are chosen before.",
                hint="Leave homes out, or set type: static.",
            )
        elif name not in spec.trainable_policies():
            yield Problem(
                pointer=where,
                code="unknown_policy",
                detail=f"{name} is no policy that is trained.",
                hint=f"Trained are: {', '.join(spec.trainable_policies())}.",
            )
        elif len(set(places)) != spec.policies[name].devices.least or not all(0 <= p < devices for p in places):
            count = spec.policies[name].devices.least
            yield Problem(
                pointer=where,
                code="wrong_devices",
                detail=f"{name} is trained on {count} of the run's {devices} trainer devices, counted from 0 and each "
                "named once.",
                hint=f"Set {list(range(count))}.",
            )


def _static(spec: ExperimentSpec) -> Iterator[Problem]:
    """Where nobody is ever suspended, all must have their places at once."""
    resources, trained = spec.resources, spec.trainable_policies()
    for name in trained:
        devices = spec.policies[name].devices
        if devices.most > devices.least:
            yield Problem(
                pointer=f"/policies/{name}/devices/most",
                code="not_read",
                detail=f"Static devices do not change, so {name} never takes more than its least, {devices.least}.",
                hint=f"Set {devices.least}, or type: agent_centric in /mechanisms/allocation.",
            )
    whole = sum(d.least for name in trained if (d := spec.policies[name].devices).least > 1)
    alone = sum(spec.policies[name].devices.least == 1 for name in trained)
    places = resources.trainer_policies or alone
    needed = whole + -(-alone // places) if alone else whole
    if needed > resources.training_devices:
        yield Problem(
            pointer="/resources/training_devices",
            code="too_few_devices",
            detail=f"Static devices hold all {len(trained)} policies at once, which takes {needed} of them.",
            hint=f"Set {needed}, a larger trainer_policies, or type: agent_centric in /mechanisms/allocation.",
        )


def _gangs(spec: ExperimentSpec) -> Iterator[Problem]:
    """Which policies several trainer ranks can share."""
    most, trained = spec.resources.training_devices, spec.trainable_policies()
    for name, policy in spec.policies.items():
        wanted, where = policy.devices.most, f"/policies/{name}/devices"
        if wanted == 1:
            continue
        if wanted > most:
            yield Problem(
                pointer=where,
                code="too_many_devices",
                detail=f"{name} wants {wanted} trainer devices; the run has training_devices {most}.",
                hint=f"Set {most}, or training_devices {wanted} in /resources.",
            )
        if name not in trained:
            yield Problem(
                pointer=where,
                code="not_trained",
                detail=f"Every agent of {name} is frozen; nothing of it is shared out among trainers.",
                hint="Set 1.",
            )
        if isinstance(policy.tuning, Lora):
            yield Problem(
                pointer=where,
                code="not_with_lora",
                detail=f"The adapter of {name} is trained on one device; what its ranks would share is the frozen "
                "model beneath.",
                hint=f"Set 1, or type: full in /policies/{name}/tuning.",
            )
        for slot, name_of in _WHOLE.items():
            chosen = getattr(spec.algorithm, slot).type
            if chosen == name_of:
                yield Problem(
                    pointer=where,
                    code=f"not_with_{chosen}",
                    detail=f"{chosen} looks at several rows at once, and ranks share out single rows.",
                    hint=f"Set 1, or another type in /algorithm/{slot}.",
                )
        if spec.mechanisms.ordered:
            yield Problem(
                pointer=where,
                code="not_with_ordered",
                detail="ordered promises bits, and how several ranks sum a gradient depends on their number.",
                hint="Set 1, or ordered: false in /mechanisms.",
            )
