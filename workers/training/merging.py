"""Makes whole models of a checkpoint's adapters: `python -m workers.training.merging <checkpoint> <policy>`.

Invariants: a merged model is made beside the checkpoint's own files and appears whole or not at all; made once, it is
found again. It computes what the base computes with the adapter over it, up to the rounding of its type. A process of
its own, since it needs memory for a whole model, and its caller none.
"""

import argparse
import shutil
import uuid
from pathlib import Path

from flexmarl.contracts.spec.team import Lora
from workers.models.adapter import check_adapter
from workers.models.folders import WEIGHTS, merged, peft_config_of
from workers.training.folders import MADE

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
        temporary.rename(target)
    except FileExistsError:  # somebody else was faster
        pass
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _write(adapter: Path, target: Path) -> None:
    from safetensors.torch import load_file, save_file

    config = peft_config_of(adapter)
    base = Path(str(config["base_model_name_or_path"]))
    lora = Lora.model_validate(
        {"rank": config["r"], "alpha": config["lora_alpha"], "targets": config["target_modules"]}
    )
    weights = {name: tensor for path in sorted(base.glob("*.safetensors")) for name, tensor in load_file(path).items()}
    parts = load_file(adapter / WEIGHTS)
    check_adapter(parts, {name: tuple(tensor.shape) for name, tensor in weights.items()}, lora)
    shutil.copytree(base, target, ignore=shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json"))
    for path in adapter.iterdir():
        if path.name not in ADAPTER_ONLY:
            shutil.copyfile(path, target / path.name)
    save_file(merged(weights, parts, lora), target / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("policy")
    asked = parser.parse_args()
    merge(asked.checkpoint, asked.policy)


if __name__ == "__main__":
    main()
