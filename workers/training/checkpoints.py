"""Exports a version vector as Hugging Face folders that plain transformers loads.

Invariants: a label's folder appears whole or not at all (written beside, then renamed), holds all policies of one
vector, and names it in `flexmarl.json`. Writing the same vector again changes nothing.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flexmarl.contracts.spec.team import FactoryModel, FolderModel
from workers.models import write_tokenizer
from workers.models.weights import TOKENIZER_FILES, model_config

if TYPE_CHECKING:
    import torch

ABOUT = "flexmarl.json"


@dataclass(frozen=True, slots=True)
class Export:
    """One policy of a checkpoint."""

    policy: str
    source: FactoryModel | FolderModel
    tokenizer: bytes
    weights: "Mapping[str, torch.Tensor]"


@dataclass(frozen=True, slots=True)
class Written:
    path: str
    bytes: int


def write_checkpoint(root: Path, label: str, about: dict[str, object], exports: Iterable[Export]) -> Written:
    """Write `<root>/<label>/<policy>/` for every export, replacing an older checkpoint of the label."""
    target = root / label
    if _about(target) == about:
        return Written(str(target), _size(target))
    root.mkdir(parents=True, exist_ok=True)
    temporary = root / f".{label}-{uuid.uuid4().hex}"
    try:
        for export in exports:
            _write_policy(temporary / export.policy, export)
        (temporary / ABOUT).write_text(json.dumps(about, indent=2, sort_keys=True), encoding="utf-8")
        _sync(temporary)
        _replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Written(str(target), _size(target))


def _write_policy(folder: Path, export: Export) -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    words = int(export.weights["model.embed_tokens.weight"].shape[0])
    config = model_config(export.source, words)
    config["dtype"] = str(next(iter(export.weights.values())).dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(dict(export.weights), folder / "model.safetensors", metadata={"format": "pt"})
    if isinstance(export.source, FolderModel):
        _copy_from(Path(export.source.path), folder)
        return
    write_tokenizer(folder, export.tokenizer)
    generation = {name: config[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2), encoding="utf-8")


def _copy_from(source: Path, folder: Path) -> None:
    for name in (*TOKENIZER_FILES, "generation_config.json", "chat_template.jinja"):
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)


def _replace(temporary: Path, target: Path) -> None:
    """Put the new folder in the old one's place."""
    old = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    if target.exists():
        target.rename(old)
    temporary.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _about(target: Path) -> dict[str, object] | None:
    try:
        found: dict[str, object] = json.loads((target / ABOUT).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return found


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _sync(folder: Path) -> None:
    """Force every file below a folder to disk."""
    for path in folder.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
