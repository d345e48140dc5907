"""Adapters out of folders as PEFT writes them, and whole models made of a base and an adapter.

Invariants: an adapter that is read is exactly one that the policy's `tuning` describes, over exactly its base: rank,
alpha, targets, every name and every shape; its values are taken as they stand. What PEFT can do and this product does
not (biases, other scalings, ranks of their own per layer) is refused by name, never dropped.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flexmarl.contracts.spec.team import ADAPTER_TARGETS, Lora
from workers.models.adapter import WrongAdapterError, check_adapter, parts_of
from workers.models.architecture import UnsupportedModel

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
    from safetensors.torch import load_file

    folder = Path(path)
    check_config(folder, peft_config_of(folder), lora)
    try:
        adapter = load_file(folder / WEIGHTS)
    except Exception as error:  # safetensors raises a type of its own, without a place among Python's
        raise WrongAdapterError(f"adapter: {folder / WEIGHTS} cannot be read: {error}") from error
    import torch

    adapter = {name: tensor.to(torch.float32) for name, tensor in adapter.items()}
    check_adapter(adapter, {name: tuple(tensor.shape) for name, tensor in base.items()}, lora)
    return adapter


def check_folder(folder: Path) -> None:
    """Raise UnsupportedModel unless a folder has the files of a whole model with its tokenizer."""
    if not folder.is_dir():
        raise UnsupportedModel(f"{folder} is no folder that this host can read; name one that every node can read")
    if (folder / CONFIG).exists() and not (folder / "config.json").exists():
        text = f"{folder} is an adapter; name it as tuning.adapter and the model it is laid over here, or a merged one"
        raise UnsupportedModel(text)
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).exists():
            raise UnsupportedModel(
                f"{folder} has no {name}; name a folder with config.json, tokenizer.json, *.safetensors"
            )


def peft_config_of(folder: Path) -> dict[str, object]:
    """Read `adapter_config.json`. Raises WrongAdapterError when the folder is none of an adapter."""
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        text = f"adapter: {folder} is no folder of an adapter ({type(error).__name__}: {error}); name one with {CONFIG}"
        raise WrongAdapterError(text) from error
    return found if isinstance(found, dict) else {}


def check_config(folder: Path, config: Mapping[str, object], lora: Lora) -> None:
    """Raise WrongAdapterError unless PEFT's settings are those of a policy's tuning."""
    if config.get("peft_type") != "LORA":
        raise WrongAdapterError(f"adapter: {folder} is of type {config.get('peft_type')}; only LORA can be trained on")
    if config.get("bias", "none") != "none":
        raise WrongAdapterError(f"adapter: {folder} has bias: {config['bias']}; only bias: none can be trained on")
    for name in _UNKNOWN:
        if config.get(name):
            raise WrongAdapterError(f"adapter: {folder} sets {name}; an adapter without it can be trained on")
    targets = config.get("target_modules")
    named = ADAPTER_TARGETS if targets == "all-linear" else targets if isinstance(targets, list) else ()
    told = {"rank": config.get("r"), "alpha": config.get("lora_alpha"), "targets": sorted(map(str, named))}
    wanted = {"rank": lora.rank, "alpha": lora.alpha, "targets": sorted(lora.targets)}
    for field, value in told.items():
        if value != wanted[field]:
            raise WrongAdapterError(f"{field}: is {wanted[field]}, the adapter in {folder} has {value}; set {value}")


def merged(base: "Weights", adapter: "Weights", lora: Lora) -> "dict[str, torch.Tensor]":
    """Return whole weights that compute what the base does with the adapter over it, in the base's type."""
    import torch

    whole = dict(base)
    for part in parts_of(base, lora.targets):
        weight = base[part.weight]
        delta = adapter[part.up].to(torch.float64) @ adapter[part.down].to(torch.float64)
        whole[part.weight] = (weight.to(torch.float64) + lora.scale * delta).to(weight.dtype)
    return whole
