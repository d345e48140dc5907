"""Which policies several trainer ranks can share: one refusal per broken rule, with a legal value."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.spec.experiment import ExperimentSpec
from flexmarl.contracts.spec.team import Lora


def gang_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return every broken rule of the policies' gangs."""
    most, trained = spec.resources.training_devices, spec.trainable_policies()
    for name, policy in spec.policies.items():
        if policy.devices == 1:
            continue
        where = f"/policies/{name}/devices"
        if policy.devices > most:
            yield Problem(
                pointer=where,
                code="too_many_devices",
                detail=f"{name} wants {policy.devices} trainer devices; the run has training_devices {most}.",
                hint=f"Set {most}, or training_devices {policy.devices} in /resources.",
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
        if spec.mechanisms.ordered:
            yield Problem(
                pointer=where,
                code="not_with_ordered",
                detail="ordered promises bits, and how several ranks sum a gradient depends on their number.",
                hint="Set 1, or ordered: false in /mechanisms.",
            )
