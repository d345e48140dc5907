"""Low-rank adapters: what their tensors are called, how they begin, which fit a model.

Names, shapes and the meaning of alpha are PEFT's, so that what is published is what PEFT and vLLM read (tested against
PEFT itself). An adapter adds `scale * up @ down` to a frozen matrix; it begins as nothing, since `up` is zero.

Invariant: an adapter names, in its description, the digest of the weights it is laid over and its scale; the digest of
the adapter covers both. `check_adapter` passes only tensors that fit these weights one by one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.team import Lora

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]

_PREFIX = "base_model.model."
_WEIGHT = ".weight"
_EXPERTS = ".experts."
"""In the names of a mixture's experts: the library computes them all as one tensor, which no adapter reaches."""


class WrongAdapterError(ValueError):
    """An adapter does not belong to the weights or the policy it is to be laid over; the text says what to do."""


@dataclass(frozen=True, slots=True)
class AdaptedMatrix:
    """One adapted matrix: its name in the model, and the names of what is added to it."""

    weight: str
    down: str
    """[rank, inputs]"""
    up: str
    """[outputs, rank]"""


def parts_of(names: Iterable[str], targets: Sequence[str]) -> list[AdaptedMatrix]:
    """Return the adapted matrices of a model that has weights of these names, in their order."""
    wanted = tuple(f".{target}{_WEIGHT}" for target in targets)
    adapted = [name for name in names if name.endswith(wanted) and _EXPERTS not in name]
    stems = [_PREFIX + name.removesuffix(_WEIGHT) for name in adapted]
    return [
        AdaptedMatrix(name, f"{stem}.lora_A{_WEIGHT}", f"{stem}.lora_B{_WEIGHT}")
        for name, stem in zip(adapted, stems, strict=True)
    ]


def initial_adapter(base: "Weights", lora: Lora, seed: int) -> "dict[str, torch.Tensor]":
    """Return an adapter that changes nothing yet: `down` drawn as linear layers begin, `up` zero."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    adapter: dict[str, torch.Tensor] = {}
    for part in parts_of(sorted(base), lora.targets):
        outputs, inputs = base[part.weight].shape
        bound = inputs**-0.5
        adapter[part.down] = torch.empty(lora.rank, inputs).uniform_(-bound, bound, generator=generator)
        adapter[part.up] = torch.zeros(outputs, lora.rank)
    return adapter


def description(base: str, lora: Lora) -> dict[str, object]:
    """Return what the description of a published adapter says beside its kind."""
    return {"base": base, "rank": lora.rank, "alpha": lora.alpha, "targets": sorted(lora.targets)}


def base_of(meta: Mapping[str, object], policy: str, lora: Lora) -> str:
    """Return the digest of the weights that a published adapter of a policy is laid over.

    Raises WrongAdapterError when the content is no adapter, or one of another kind than the policy's.
    """
    if "base" not in meta:
        raise WrongAdapterError(
            f"{policy} trains an adapter, but this content is not one; publish the adapter, or set tuning: full"
        )
    told = {key: meta.get(key) for key in ("rank", "alpha", "targets")}
    wanted = {key: value for key, value in description("", lora).items() if key != "base"}
    if told != wanted:
        raise WrongAdapterError(f"this adapter has {told}, that of {policy} has {wanted}; load one made for {policy}")
    return str(meta["base"])


def no_adapter(meta: Mapping[str, object], policy: str) -> None:
    """Raise WrongAdapterError when the content for a policy that trains every weight is an adapter."""
    if "base" in meta:
        raise WrongAdapterError(
            f"{policy} trains all weights, but this content is an adapter of rank {meta.get('rank')}; "
            "load whole weights, or set tuning: lora"
        )


def check_adapter(adapter: "Weights", base: Mapping[str, tuple[int, ...]], lora: Lora) -> None:
    """Raise WrongAdapterError unless the adapter has exactly what weights of these shapes and its targets call for."""
    expected: dict[str, tuple[int, ...]] = {}
    for part in parts_of(base, lora.targets):
        outputs, inputs = base[part.weight]
        expected |= {part.down: (lora.rank, inputs), part.up: (outputs, lora.rank)}
    there = [target for target in lora.targets if parts_of(base, (target,))]
    if len(there) < len(lora.targets):
        absent = ", ".join(target for target in lora.targets if target not in there)
        wayout = f"set targets: {', '.join(there)}" if there else "set tuning: full"
        raise WrongAdapterError(f"targets: {absent}: the model has no such matrix outside of experts; {wayout}")
    found = {name: tuple(tensor.shape) for name, tensor in adapter.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            given, wanted = (str(shapes.get(name, "absent")) for shapes in (found, expected))
            raise WrongAdapterError(
                f"this adapter does not fit its base: {name} is {given} and must be {wanted}; load one made for it"
            )


def peft_config(base_path: str, lora: Lora) -> dict[str, object]:
    """Return `adapter_config.json` as PEFT and vLLM read it."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_path,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": sorted(lora.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
