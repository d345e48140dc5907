"""What an agent with somebody else's model cannot be: trained, shared, repeated bit by bit."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec


def external_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what external agents of a specification break."""
    for role, agent in spec.agents.items():
        if agent.external is None:
            continue
        if agent.trainable:
            yield Problem(
                pointer=f"/agents/{role}/trainable",
                code="external_is_frozen",
                detail=f"{role} uses an external model, which cannot be trained.",
                hint="Set false.",
            )
        if agent.policy is not None:
            yield Problem(
                pointer=f"/agents/{role}/policy",
                code="external_has_no_policy",
                detail=f"{role} uses an external model, so it has no policy in this run.",
                hint="Remove it, or remove external.",
            )
        if role in spec.policies:
            yield Problem(
                pointer=f"/policies/{role}",
                code="external_has_no_policy",
                detail=f"A policy with the name of the external agent {role} would be ambiguous.",
                hint="Remove it, or give it another name.",
            )
        if spec.mechanisms.ordered:
            yield Problem(
                pointer="/mechanisms/ordered",
                code="not_with_external",
                detail=f"Ordered runs must be bitwise reproducible; the external model of {role} is not.",
                hint="Set false.",
            )
