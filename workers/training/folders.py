"""Folders of checkpoints as they lie on disk: their manifest, whether they are whole, how they go.

Invariants: a manifest lists every file of its folder with its length and BLAKE3, so whoever reads a folder can tell
whether it is what was written. A folder goes in one instant: it loses its name before it loses its files, so nobody
finds half of one. No torch here: the node looks after folders, too.
"""

import contextlib
import json
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

MANIFEST = "flexmarl.json"
MADE = ".made"
"""Below a checkpoint: what was made of it for readers, such as merged models. It belongs to no manifest."""
FILES = "files"


@dataclass(frozen=True, slots=True)
class Damage:
    """Why a folder is not what was written."""

    state: str
    """`missing` or `damaged`."""
    text: str


def root_of(home: str | Path, run_id: int) -> Path:
    """Return where a run's checkpoints lie."""
    return Path(home) / "checkpoints" / f"run-{run_id}"


def write_manifest(folder: Path, about: dict[str, object]) -> None:
    """Write the manifest of a folder whose files are all there."""
    files = {str(path.relative_to(folder)): [path.stat().st_size, hash_of(path)] for path in files_of(folder)}
    text = json.dumps({**about, FILES: files}, indent=2, sort_keys=True)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, object] | None:
    """Return a folder's manifest, None when it has none that can be read."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def whole(folder: Path, about: dict[str, object]) -> bool:
    """Tell whether a folder holds just this vector, whole."""
    manifest = read_manifest(folder)
    if manifest is None or {name: value for name, value in manifest.items() if name != FILES} != about:
        return False
    return Inspector().look(folder) is None


def listed(folder: Path) -> dict[str, tuple[int, str]]:
    """Return length and BLAKE3 of each file that a folder's manifest names; nothing for one without."""
    manifest = read_manifest(folder) or {}
    found = manifest.get(FILES)
    files = found if isinstance(found, dict) else {}
    return {name: (int(size), str(digest)) for name, (size, digest) in files.items()}


def files_of(folder: Path) -> list[Path]:
    """List the files of a folder but its manifest and what was made of it."""
    found = (path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    return sorted(path for path in found if MADE not in path.relative_to(folder).parts)


def hash_of(path: Path) -> str:
    """Return the BLAKE3 of a file."""
    return blake3().update_mmap(path).hexdigest()


def size_of(folder: Path) -> int:
    """Return the bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def remove(folder: Path) -> None:
    """Take a folder away: its name at once, then its files. One that is not there is gone already."""
    with contextlib.suppress(FileNotFoundError):
        folder.rename(folder.with_name(f".{folder.name}-gone-{uuid.uuid4().hex}"))
    for left in folder.parent.glob(f".{folder.name}-gone-*"):  # also what an earlier life was removing
        shutil.rmtree(left, ignore_errors=True)


class Inspector:
    """Tells what became of folders; a file is read through once, and again when it has changed."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """File -> length and time of change with which its content was right."""

    def look(self, folder: Path) -> Damage | None:
        """Return what is wrong with a folder, None when it is what was written."""
        damage = self._damage(folder)
        if damage is not None and not folder.is_dir():  # what goes while it is looked at lacks files for a moment
            return Damage("missing", "its folder is not there; put it back, or write another checkpoint")
        return damage

    def _damage(self, folder: Path) -> Damage | None:
        files = listed(folder)
        if not files:
            return Damage("damaged", f"{MANIFEST} is missing or cannot be read; put it back")
        for name, (size, digest) in files.items():
            path = folder / name
            try:
                stamp = path.stat()
            except OSError:
                return Damage("damaged", f"{name} is not there; put it back, or use another checkpoint")
            if stamp.st_size != size or not self._right(path, stamp, digest):
                return Damage("damaged", f"{name} is not what was written; put it back, or use another checkpoint")
        return None

    def _right(self, path: Path, stamp: os.stat_result, digest: str) -> bool:
        seen = (stamp.st_size, stamp.st_mtime_ns)
        if self._seen.get(str(path)) != seen:
            if hash_of(path) != digest:
                return False
            self._seen[str(path)] = seen
        return True

    def forget(self, folder: Path) -> None:
        """Think no more of a folder that is gone."""
        for name in [name for name in self._seen if name.startswith(f"{folder}{os.sep}")]:
            del self._seen[name]
