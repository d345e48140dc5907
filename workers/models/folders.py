"""Adapters out of folders as PEFT writes them, and whole models made of a base and an adapter.

Invariants: an adapter that is read is exactly one that the policy's `tuning` describes, over exactly its base: rank,
alpha, targets, every name and every shape; its values are taken as they stand. What PEFT can do and this product does
not (biases, other scalings, ranks of their own per layer) is refused by name, never dropped.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.team import ADAPTER_TARGETS, Lora
from workers.models.adapter import WrongAdapterError, check_adapter, parts_of
from workers.models.errors import UnsupportedModel
from workers.models.opening import TOKENIZER_BYTES, ModelFolder
from workers.models.tensors import read_tensors

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_UNKNOWN = (
    "use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform",
    "fan_in_fan_out",
)  # fmt: skip
"""Settings of PEFT that change what an adapter computes and that nothing here computes."""


def read_adapter(path: str, base: "Weights", lora: Lora) -> "dict[str, torch.Tensor]":
    """Read the adapter of a PEFT folder. Raises WrongAdapterError naming the setting and the value that fits."""
    import torch

    try:
        with ModelFolder(path) as folder:
            check_config(folder.json(CONFIG), lora)
            adapter = read_tensors(folder, WEIGHTS, torch.float32)
    except UnsupportedModel as error:
        raise WrongAdapterError(f"adapter: {error}; name a folder with {CONFIG} and {WEIGHTS}") from error
    check_adapter(adapter, {name: tuple(tensor.shape) for name, tensor in base.items()}, lora)
    return adapter


def copy_files(path: str, target: Path, *names: str) -> None:
    """Copy files of a model's folder into another one, as far as they are there."""
    with ModelFolder(path) as folder:
        for name in names:
            if folder.has(name):
                (target / name).write_bytes(folder.read(name, TOKENIZER_BYTES))


def check_config(config: Mapping[str, object], lora: Lora) -> None:
    """Raise WrongAdapterError unless PEFT's settings are those of a policy's tuning."""
    if config.get("peft_type") != "LORA":
        raise WrongAdapterError(f"adapter: it is of type {config.get('peft_type')}; only LORA can be trained on")
    if config.get("bias", "none") != "none":
        raise WrongAdapterError(f"adapter: it has bias: {config['bias']}; only bias: none can be trained on")
    for name in _UNKNOWN:
        if config.get(name):
            raise WrongAdapterError(f"adapter: it sets {name}; an adapter without it can be trained on")
    targets = config.get("target_modules")
    named = ADAPTER_TARGETS if targets == "all-linear" else targets if isinstance(targets, list) else ()
    told = {"rank": config.get("r"), "alpha": config.get("lora_alpha"), "targets": sorted(map(str, named))}
    wanted = {"rank": lora.rank, "alpha": lora.alpha, "targets": sorted(lora.targets)}
    for field, value in told.items():
        if value != wanted[field]:
            raise WrongAdapterError(f"{field}: is {wanted[field]}, the adapter has {value}; set {value}")


def merged(base: "Weights", adapter: "Weights", lora: Lora) -> "dict[str, torch.Tensor]":
    """Return whole weights that compute what the base does with the adapter over it, in the base's type."""
    import torch

    whole = dict(base)
    for part in parts_of(base, lora.targets):
        weight = base[part.weight]
        delta = adapter[part.up].to(torch.float64) @ adapter[part.down].to(torch.float64)
        whole[part.weight] = (weight.to(torch.float64) + lora.scale * delta).to(weight.dtype)
    return whole
