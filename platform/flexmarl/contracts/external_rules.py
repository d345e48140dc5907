"""What an agent with somebody else's model cannot be: trained, shared, repeated bit by bit."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.spec.experiment import ExperimentSpec


def external_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what external agents of a specification break."""
    for role, agent in spec.agents.items():
        if agent.external is None:
            continue
        if agent.trainable:
            yield Problem(
                pointer=f"/agents/{role}/trainable",
                code="external_is_frozen",
                detail=f"{role} plays with somebody else's model, whose weights nobody here can change.",
                hint="Set false.",
            )
        if agent.policy is not None:
            yield Problem(
                pointer=f"/agents/{role}/policy",
                code="external_has_no_policy",
                detail=f"{role} plays with somebody else's model, so it acts with no policy of the run.",
                hint="Remove it, or remove external.",
            )
        if role in spec.policies:
            yield Problem(
                pointer=f"/policies/{role}",
                code="external_has_no_policy",
                detail=f"A policy that bears the name of the external agent {role} could not be told from it.",
                hint="Remove it, or give it another name.",
            )
        if spec.mechanisms.ordered:
            yield Problem(
                pointer="/mechanisms/ordered",
                code="not_with_external",
                detail=f"An ordered run promises bits, and nobody can promise those of {role}'s model.",
                hint="Set false.",
            )
