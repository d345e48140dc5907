"""A folder of files as a content: how a checkpoint's folder is sent from one node to another.

Invariants: bytes are read from the files when they are sent, never held. What is laid down has only plain files, below
the folder, with names that need no care; it appears whole or not at all, where it belongs to the run and step that its
own manifest names.
"""

import json
import mmap
import re
import shutil
import uuid
from pathlib import Path

from flexmarl.host.files import sync_folder, sync_tree
from workers.training.folders import (
    FILES,
    MANIFEST,
    Inspector,
    files_of,
    read_manifest,
    remove,
    root_of,
    write_manifest,
)
from workers.transfer.base import CorruptState
from workers.transfer.contents import BYTES, Description, Encoded, TensorEntry, encode_files
from workers.transfer.files import full_told
from workers.transfer.local import LocalTier

KIND = "folder"
ADAPTER = "adapter_config.json"
_BASE = "base_model_name_or_path"
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")
DEEPEST = 6


def encoded_folder(folder: Path) -> Encoded:
    """Name a folder as a content, whose bytes are read when they are sent. Raises OSError where a file is gone."""
    files = {path.relative_to(folder).as_posix(): _mapped(path) for path in [*files_of(folder), folder / MANIFEST]}
    return encode_files(files, {"kind": KIND, "place": str(folder)})


def lay_down(home: str | Path, digest: str, owner: str, run_id: int, step: int) -> tuple[Path, int]:
    """Make the folder of a checkpoint of a content that lies here; return its place and bytes.

    Raises CorruptState for what is no such folder, StateMissing, StateFull.
    """
    tier = LocalTier(home, owner)
    description = tier.description(digest)
    if description.described.get("kind") != KIND:
        raise CorruptState(digest, "it is no folder")
    root = root_of(home, run_id)
    target = root / f"step-{step}"
    temporary = root / f".{target.name}-new-{uuid.uuid4().hex}"
    try:
        with full_told(digest, root):
            for left in root.glob(f".{target.name}-new-*"):  # of a life that was killed
                shutil.rmtree(left, ignore_errors=True)
            for entry in description.tensors:
                _write(tier, digest, description, entry, temporary / _plain(digest, entry))
            _check(digest, temporary, run_id, step)
            _settle(digest, temporary, Path(str(description.described.get("place", ""))), target)
            sync_tree(temporary)
            remove(target)
            temporary.rename(target)
            sync_folder(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target, sum(entry.shape[0] for entry in description.tensors)


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        empty = not path.stat().st_size
        return memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _plain(digest: str, entry: TensorEntry) -> Path:
    """Return where a file of a folder lies in it. Raises CorruptState for a name that could lead elsewhere."""
    parts = entry.name.split("/")
    if entry.dtype != BYTES or len(entry.shape) != 1 or len(parts) > DEEPEST or not all(map(_PART.fullmatch, parts)):
        raise CorruptState(digest, f"{entry.name!r} is no file that a checkpoint may have")
    return Path(*parts)


def _write(tier: LocalTier, digest: str, description: Description, entry: TensorEntry, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    step, end = description.chunk_bytes, entry.start + entry.shape[0]
    room = memoryview(bytearray(step))
    with path.open("xb") as file:
        for number in range(entry.start // step, -(-end // step) if entry.shape[0] else 0):
            chunk = room[: description.size(number)]
            tier.read_chunk(digest, number, chunk)
            file.write(chunk[max(entry.start - number * step, 0) : end - number * step])


def _check(digest: str, folder: Path, run_id: int, step: int) -> None:
    about = read_manifest(folder) or {}
    if (about.get("run"), about.get("step")) != (run_id, step):
        raise CorruptState(digest, f"it is not the checkpoint of run {run_id} after step {step}")
    if damage := Inspector().look(folder):
        raise CorruptState(digest, damage.text)


def _settle(digest: str, folder: Path, former: Path, target: Path) -> None:
    """Let adapters name the bases beside them by their new place."""
    changed = False
    for path in folder.glob(f"*/{ADAPTER}"):
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            base = Path(config[_BASE])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptState(digest, f"{ADAPTER} of {path.parent.name} cannot be read: {error}") from error
        if base.parent == former and (folder / base.name).is_dir():
            path.write_text(json.dumps({**config, _BASE: str(target / base.name)}, indent=2), encoding="utf-8")
            changed = True
    if changed:
        about = read_manifest(folder) or {}
        write_manifest(folder, {name: value for name, value in about.items() if name != FILES})
