"""Which sampling parameters can be combined with what: one refusal per broken rule, with a legal value.

The trainer computes the softmax over the allowed words of logits divided by the temperature, and makes the masks of a
grammar again. Whatever else changes the distribution that a reply is drawn from is therefore refused for agents that
are trained (decision 0010).
"""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.sampling import Sampling
from flexmarl.contracts.specification.team import FactoryModel
from flexmarl.contracts.structured import fault_of

PROCESSORS = ("top_p", "top_k", "min_p", "repetition_penalty", "structured")
"""Parameters that change the distribution in more ways than a temperature."""
NOT_OPENAI = ("top_k", "min_p", "repetition_penalty", "structured")
"""Parameters that an external endpoint need not know."""
_DEFAULTS = Sampling()


def sampling_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return a refusal for each sampling parameter that does nothing or not what it says."""
    for role, agent in spec.agents.items():
        changed = [name for name in PROCESSORS if getattr(agent.sampling, name) != getattr(_DEFAULTS, name)]
        for name in changed:
            pointer, neutral = f"/agents/{role}/sampling/{name}", _neutral(name)
            if agent.trainable and name != "structured":
                yield Problem(
                    pointer=pointer,
                    code="not_when_trained",
                    detail=f"{name} changes the distribution that replies of {role} are drawn from; the trainer "
                    "computes the whole one, so its gradient would be that of another policy.",
                    hint=f"Set {neutral}, or trainable: false.",
                )
            elif agent.external is not None and name in NOT_OPENAI:
                yield Problem(
                    pointer=pointer,
                    code="not_with_external",
                    detail=f"{role} uses an external model, and the OpenAI dialect has no {name}.",
                    hint=f"Set {neutral}.",
                )
            elif name == "structured":
                yield from _grammar(role, agent.sampling)
                yield from _trained_grammar(spec, role)
        yield from _text(spec, role)


def _grammar(role: str, sampling: Sampling) -> Iterator[Problem]:
    """Return a refusal of what no engine can hold replies to."""
    assert sampling.structured is not None
    if fault := fault_of(sampling.structured):
        yield Problem(
            pointer=f"/agents/{role}/sampling/structured",
            code="no_grammar",
            detail=f"No engine can hold replies of {role} to it: {fault}.",
            hint="Set null, or a schema or expression without that.",
        )


def _trained_grammar(spec: ExperimentSpec, role: str) -> Iterator[Problem]:
    """Return a refusal of rows that could not be trained as drawn from what a grammar allows."""
    pointer = f"/agents/{role}/sampling/structured"
    if not spec.agents[role].trainable:
        return
    if not spec.environment.converses:
        yield Problem(
            pointer=pointer,
            code="not_with_words",
            detail=f"{spec.environment.type} says itself which words a reply may have, and a reply has one mask.",
            hint="Set null, or an environment that speaks in messages, such as sums.",
        )
    if spec.sampling.sharing.on and spec.sampling.sharing.foreign:
        yield Problem(
            pointer=pointer,
            code="not_with_sharing",
            detail=f"Rollouts of others were said without the grammar of {role}, so no mask would fit them.",
            hint="Set null, or foreign: 0 in /sampling/sharing.",
        )


def _text(spec: ExperimentSpec, role: str) -> Iterator[Problem]:
    """Return a refusal where an engine would have to read text and has no tokenizer for it."""
    agent = spec.agents[role]
    if agent.external is not None or not isinstance(spec.policies[spec.policy_of(role)].source, FactoryModel):
        return
    for name in ("stop", "structured"):
        if getattr(agent.sampling, name) != getattr(_DEFAULTS, name):
            yield Problem(
                pointer=f"/agents/{role}/sampling/{name}",
                code="needs_text",
                detail=f"{name} is about text; factory models know only the words of closed games, whose "
                "environments say which words end a reply.",
                hint=f"Set {_neutral(name)}, or a policy of type: package, folder or registered.",
            )


def _neutral(name: str) -> str:
    value = getattr(_DEFAULTS, name)
    return {None: "null", (): "[]"}.get(value, str(value))
