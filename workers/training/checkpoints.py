"""Exports a version vector as Hugging Face folders that plain transformers loads.

Invariants: a folder appears whole or not at all (written beside, then renamed), holds all policies of one vector, and
names it in its manifest, `flexmarl.json`, with length and BLAKE3 of every file; the manifest is the last file written.
Writing the same vector again changes nothing. An adapter is exported as PEFT reads it, beside the one base of all
adapters of its model, `base-<number>`, which it names by its final place.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.team import FactoryModel, FolderModel, OwnSource
from flexmarl.host.files import NO_SPACE, sync_folder, sync_tree
from workers.models import write_tokenizer
from workers.models.adapter import peft_config
from workers.models.checks import EMBEDDING
from workers.models.folders import copy_files
from workers.models.licences import licence_in
from workers.models.opening import ModelFolder
from workers.models.places import folder_of
from workers.models.weights import TOKENIZER_FILES, model_config
from workers.training.folders import remove, size_of, whole, write_manifest
from workers.training.learner import Adapter
from workers.transfer.files import full_told

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Export:
    """One policy of a checkpoint."""

    policy: str
    source: OwnSource
    tokenizer: bytes
    weights: "Mapping[str, torch.Tensor]"
    adapter: Adapter | None = None
    """What is trained, when `weights` are frozen beneath it."""


@dataclass(frozen=True, slots=True)
class Written:
    path: str
    bytes: int


def write_checkpoint(root: Path, label: str, about: dict[str, object], exports: Iterable[Export]) -> Written:
    """Write `<root>/<label>/<policy>/` for every export, replacing what stood there of another vector.

    Raises StateFull.
    """
    target = root / label
    if whole(target, about):
        return Written(str(target), size_of(target))
    for left in root.glob(f".{label}-new-*"):  # of a writer that was killed
        shutil.rmtree(left, ignore_errors=True)
    temporary = root / f".{label}-new-{uuid.uuid4().hex}"
    try:
        with full_told(label, root):
            root.mkdir(parents=True, exist_ok=True)
            _write(temporary, target, about, exports)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Written(str(target), size_of(target))


def _write(temporary: Path, target: Path, about: dict[str, object], exports: Iterable[Export]) -> None:
    """Write every export beside the target, all of it to the disk, and put it in the target's place."""
    bases: dict[str, Path] = {}
    for export in exports:
        if export.adapter is None:
            _write_model(temporary / export.policy, export)
        else:
            _write_adapter(temporary / export.policy, export.adapter, _base(bases, temporary, target, export))
            _write_tokenizer(temporary / export.policy, export)
    write_manifest(temporary, about)
    sync_tree(temporary)
    _replace(temporary, target)


def _base(bases: dict[str, Path], temporary: Path, target: Path, export: Export) -> Path:
    """Return where an adapter's base will lie; write it unless it is a folder's model or another policy's."""
    if isinstance(export.source, FolderModel):
        return Path(export.source.path)
    key = export.source.model_dump_json() + _dtype(export)
    if key not in bases:
        bases[key] = target / f"base-{len(bases)}"
        _write_model(temporary / bases[key].name, export)
    return bases[key]


def _write_adapter(folder: Path, adapter: Adapter, base: Path) -> None:
    folder.mkdir(parents=True)
    config = json.dumps(peft_config(str(base), adapter.settings), indent=2)
    (folder / "adapter_config.json").write_text(config, encoding="utf-8")
    _save(adapter.weights, folder / "adapter_model.safetensors")


def _save(tensors: "Mapping[str, torch.Tensor]", path: Path) -> None:
    """Write tensors. Raises OSError for a full disk, which the package tells in words alone."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        number = next((number for number in NO_SPACE if f"(os error {number})" in str(error)), 0)
        if not number:
            raise
        raise OSError(number, os.strerror(number)) from error


def _write_model(folder: Path, export: Export) -> None:
    folder.mkdir(parents=True)
    embedding = export.weights.get(EMBEDDING)  # of a folder, whose config.json says how many words it has
    config = model_config(export.source, 0 if embedding is None else len(embedding))
    config["dtype"] = _dtype(export)
    if not isinstance(export.source, FactoryModel):  # what is made of a model is under its licence
        with ModelFolder(folder_of(export.source)) as of:
            config |= {"license": licence} if (licence := licence_in(of, config)) else {}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    _save(export.weights, folder / "model.safetensors")
    _write_tokenizer(folder, export)
    if not isinstance(export.source, FactoryModel):
        copy_files(folder_of(export.source), folder, "generation_config.json")
        return
    generation = {name: config[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2), encoding="utf-8")


def _dtype(export: Export) -> str:
    return str(next(iter(export.weights.values())).dtype).removeprefix("torch.")


def _write_tokenizer(folder: Path, export: Export) -> None:
    if not isinstance(export.source, FactoryModel):
        copy_files(folder_of(export.source), folder, *TOKENIZER_FILES, "chat_template.jinja")
    else:
        write_tokenizer(folder, export.tokenizer)


def _replace(temporary: Path, target: Path) -> None:
    """Put the new folder in the old one's place."""
    remove(target)
    temporary.rename(target)
    sync_folder(target.parent)
