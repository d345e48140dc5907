"""What a trainer's forward pass makes of the replies of an engine, for policies of the reference game in size M."""

from collections.abc import Sequence

import torch

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.team import FactoryModel, Lora
from tests.support.engines import WORDS, RunningEngine
from tests.support.packed import last_logits
from workers.models.adapter import description, initial_adapter
from workers.models.architecture import architecture_of
from workers.models.weights import initial_weights
from workers.rollout.engines.wire import CompletionChoice
from workers.training.adapted import LowRank
from workers.training.decoder import Decoder, parameter_order
from workers.training.parameters import FlatParameters

PROMPTS = [[1, *range(3, 3 + n)] for n in (2, 5, 9, 33)]
ADAPTED = {"left": Lora(rank=4), "right": Lora(rank=10, alpha=10.0, targets=("k_proj", "up_proj", "o_proj"))}
"""Policies that train adapters over one base."""


def adapter(policy: str, seed: int) -> dict[str, torch.Tensor]:
    """Return an adapter of which nothing is zero, as training leaves it."""
    begun = initial_adapter(initial_weights(FactoryModel(size="M"), WORDS, 0), ADAPTED[policy], seed)
    generator = torch.Generator().manual_seed(seed)
    return {name: tensor + torch.randn(tensor.shape, generator=generator) * 0.1 for name, tensor in begun.items()}


def put_adapter(engine: RunningEngine, policy: str, seed: int, base: int = 0) -> str:
    """Publish an adapter as a trainer does; returns its digest."""
    return engine.plane.put(adapter(policy, seed), description(engine.put(base), ADAPTED[policy])).digest


def trained_logprobs(
    seed: int,
    prompt: Sequence[int],
    reply: Sequence[int],
    temperature: float = 1.0,
    allowed: Sequence[int] = (),
    adapted: str = "",
) -> list[float]:
    """Return what the trainer's forward pass makes of a reply; of an adapter over the first weights if one is named."""
    policy = ExperimentSpec.model_validate(
        {"agents": {"speaker": {}, "listener": {}}, "policies": {"speaker": {"model": {"size": "M"}}},
         "environment": {"type": "reference_game"}}
    ).policies["speaker"]  # fmt: skip
    weights = initial_weights(policy.model, WORDS, 0 if adapted else seed)
    parameters = FlatParameters(weights, parameter_order(weights.keys()), "fp32", "cpu")
    over = LowRank(parameters, adapter(adapted, seed), ADAPTED[adapted], "fp32", "cpu") if adapted else None
    decoder = Decoder(parameters, architecture_of(policy.model), over)
    with torch.no_grad():
        (logits,) = last_logits(decoder, [[*prompt, *reply[:-1]]], len(reply))
        if allowed:
            mask = torch.full((WORDS,), float("-inf"))
            mask[list(allowed)] = 0.0
            logits = logits + mask
        chances = torch.log_softmax(logits / temperature, -1)
    return chances.gather(1, torch.tensor(reply)[:, None])[:, 0].tolist()


def differences(
    seed: int, choices: Sequence[CompletionChoice], prompts: Sequence[Sequence[int]] = PROMPTS, **how: object
) -> list[float]:
    return [
        abs(ours - theirs)
        for choice in choices
        for ours, theirs in zip(
            choice.logprobs, trained_logprobs(seed, prompts[choice.index], choice.token_ids, **how), strict=True
        )
    ]


def asked(version: int, digest: str, **more: object) -> dict[str, object]:
    """Return a body about one version, with a seed per prompt."""
    body = {"model": "speaker", "prompt": PROMPTS, "max_tokens": 24, "version": version, "digest": digest, **more}
    return {"seeds": list(range(len(body["prompt"]))), **body}
