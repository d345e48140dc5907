"""Makes whole models of a checkpoint's adapters: `python -m workers.training.merging <checkpoint> <policy>`.

Invariants: a merged model is made beside the checkpoint's own files and appears whole or not at all; made once, it is
found again. It computes what the base computes with the adapter over it, up to the rounding of its type. A process of
its own, since it needs memory for a whole model, and its caller none.
"""

import argparse
import json
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.team import Lora
from flexmarl.host.files import sync_folder, sync_tree
from flexmarl.store.data.model_roots import ModelRoots
from workers.models.adapter import check_adapter
from workers.models.folders import CONFIG, WEIGHTS, copy_files, merged
from workers.models.opening import ModelFolder, allow
from workers.models.tensors import read_tensors, tensor_files
from workers.models.weights import TOKENIZER_FILES
from workers.training.folders import MADE

if TYPE_CHECKING:
    import torch

BESIDE = ("config.json", "generation_config.json", "chat_template.jinja", *TOKENIZER_FILES)
"""What a whole model has beside its weights."""
ADAPTER_ONLY = {"adapter_config.json", WEIGHTS}


def merged_folder(checkpoint: Path, policy: str) -> Path:
    """Return where the merged model of a policy lies, made or not."""
    return checkpoint / MADE / f"merged-{policy}"


def merge(checkpoint: Path, policy: str) -> Path:
    """Make the merged model of a policy, unless it is there."""
    target = merged_folder(checkpoint, policy)
    if target.is_dir():
        return target
    target.parent.mkdir(exist_ok=True)
    temporary = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        _write(checkpoint / policy, temporary)
        sync_tree(temporary)  # no manifest tells whether it is whole: its name alone does
        temporary.rename(target)
        sync_folder(target.parent)
    except OSError:
        if not target.is_dir():  # else somebody was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _write(adapter: Path, target: Path) -> None:
    from safetensors.torch import load_file, save_file

    config = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
    base = Path(config["base_model_name_or_path"])
    lora = Lora.model_validate(
        {"rank": config["r"], "alpha": config["lora_alpha"], "targets": config["target_modules"]}
    )
    weights = _base_weights(base, inside=base.parent == adapter.parent)
    parts = load_file(adapter / WEIGHTS)
    check_adapter(parts, {name: tuple(tensor.shape) for name, tensor in weights.items()}, lora)
    target.mkdir()
    if base.parent == adapter.parent:
        for name in (name for name in BESIDE if (base / name).exists()):
            shutil.copyfile(base / name, target / name)
    else:
        copy_files(str(base), target, *BESIDE)
    for path in adapter.iterdir():
        if path.name not in ADAPTER_ONLY:
            shutil.copyfile(path, target / path.name)
    save_file(merged(weights, parts, lora), target / "model.safetensors", metadata={"format": "pt"})


def _base_weights(base: Path, inside: bool) -> "dict[str, torch.Tensor]":
    """Read what an adapter is laid over: written beside it, or in a folder that the run named, as it is there."""
    from safetensors.torch import load_file

    if inside:
        return {name: tensor for path in sorted(base.glob("*.safetensors")) for name, tensor in load_file(path).items()}
    with ModelFolder(str(base)) as folder:
        return {key: tensor for name in tensor_files(folder) for key, tensor in read_tensors(folder, name).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("policy")
    parser.add_argument("--model-root", action="append", default=[], help="folder below which a base may lie")
    parser.add_argument("--closed", action="append", default=[], help="folder in which none may lie")
    asked = parser.parse_args()
    allow(ModelRoots(tuple(asked.model_root), tuple(asked.closed)))
    merge(asked.checkpoint, asked.policy)


if __name__ == "__main__":
    main()
