"""The files of a session's workspace: laid out, compared with what was laid out, packed for another sandbox, unpacked.

Invariants. Nothing is written outside the workspace: what leads out of it is no file of it. Links are never followed
where files are compared or packed. What is kept and what is said is bounded, however much an agent writes.
"""

import difflib
import hashlib
import io
import os
import shutil
import stat
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from .shapes import ProgramFault
from .unpacking import extract

ARCHIVES = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz")
PASSED_OVER = (".git", "__pycache__")
"""Folders whose files are not listed: what programs keep for themselves."""
MOST_FILES = 20_000
"""Files of a workspace that are compared."""
MOST_LISTED = 200
"""Changed files that are named."""
MOST_PATH = 200
"""Characters of a path that are shown."""
MOST_DIFF = 64 * 2**10
"""Bytes of the differences of all files together."""
MOST_TEXT = 128 * 2**10
"""Bytes of a file whose differences are shown."""
MOST_LINES = 5000
MOST_KEPT = 16 * 2**20
"""Bytes of texts that are kept to be compared with."""
MOST_HASHED = 8 * 2**20
"""Bytes of a file of which a digest is made; of a larger one, size and time tell whether it changed."""
DIFF_S = 1.0
"""How long differences are looked for; comparing lines can take long where many are alike."""
PIECE = 192 * 2**10


# Laying out ----------------------------------------------------------------------------------------------------------


def lay(workspace: Path, folder: str, files: Mapping[str, str]) -> None:
    """Lay a folder or an archive of the package into a workspace, then files. Raises ProgramFault."""
    if folder:
        _lay_folder(workspace, folder)
    for name, text in files.items():
        place = _room_for(workspace, name)
        place.write_text(text, encoding="utf-8", errors="surrogateescape")


def _lay_folder(workspace: Path, folder: str) -> None:
    source = Path(sysconfig.get_path("purelib"), folder)
    if source.is_dir():
        for place, _, names in os.walk(source):
            inner = Path(place).relative_to(source)
            for name in names:
                if "__pycache__" not in inner.parts:
                    target = _room_for(workspace, str(inner / name))
                    shutil.copy(Path(place, name), target, follow_symlinks=False)
                    if not target.is_symlink():
                        target.chmod(target.stat().st_mode | stat.S_IWUSR)
    elif source.is_file() and folder.endswith(".zip"):
        with zipfile.ZipFile(source) as archive:
            archive.extractall(workspace)
    elif source.is_file() and folder.endswith(ARCHIVES):
        with tarfile.open(source) as packed:
            for member in packed:
                extract(packed, member, workspace)
    else:
        raise ProgramFault(f"workspace: its package has neither a folder nor an archive {folder}")


def _room_for(workspace: Path, name: str) -> Path:
    """Return where a file is to lie, with real folders above it and nothing in its place."""
    place = workspace
    parts = Path(name).parts
    for part in parts[:-1]:
        place /= part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            place.unlink()
        place.mkdir(exist_ok=True)
    place /= parts[-1]
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    return place


# Comparing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileState:
    """A file as it was."""

    size: int
    told: tuple[int, int]
    """Number of its node and time of its last change: where both are the same, so is the file."""
    digest: bytes
    """Empty for a large file."""
    text: str | None
    """None where it is none, or too long to be compared."""


Workspace = Mapping[str, FileState]


def state_of(workspace: Path) -> dict[str, FileState]:
    """Return the files of a workspace as they are now."""
    found: dict[str, FileState] = {}
    kept = 0
    for name, path in files_of(workspace):
        state = _state(path, kept < MOST_KEPT)
        if state is not None:
            found[name] = state
            kept += len(state.text or "")
    return found


def files_of(workspace: Path) -> Iterator[tuple[str, Path]]:
    """Yield files and links by their paths in a workspace, in order, not more than are compared."""
    count = 0
    for place, folders, names in os.walk(workspace):
        folders[:] = sorted(name for name in folders if name not in PASSED_OVER)
        linked = [name for name in folders if Path(place, name).is_symlink()]
        for name in sorted([*names, *linked]):
            path = Path(place, name)
            yield str(path.relative_to(workspace)), path
            count += 1
            if count == MOST_FILES:
                return


def _state(path: Path, keep: bool) -> FileState | None:
    try:
        found = path.lstat()
        told = (found.st_ino, found.st_ctime_ns)
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(path)
            return FileState(len(target), told, target.encode(errors="surrogateescape"), f"-> {target}\n")
        if not stat.S_ISREG(found.st_mode):
            return None
        if found.st_size > MOST_HASHED:
            return FileState(found.st_size, told, b"", None)
        body = path.read_bytes()
    except OSError:  # it went meanwhile, or may not be read
        return None
    text = _text(body) if keep and len(body) <= MOST_TEXT else None
    return FileState(len(body), told, hashlib.blake2b(body, digest_size=16).digest(), text)


def _text(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _same(before: FileState, now: FileState) -> bool:
    return before.told == now.told or (bool(before.digest) and before.digest == now.digest)


def changes(before: Workspace, now: Workspace) -> dict[str, Any]:
    """Return which files changed, and how, as a trajectory shows it; what is left out is counted."""
    names = [name for name in sorted({*before, *now}) if not _is_same(before, now, name)]
    differences = _Differences()
    files: list[dict[str, Any]] = []
    for name in names:
        old, new = before.get(name), now.get(name)
        change = "added" if old is None else "removed" if new is None else "changed"
        shown = differences.add(name, old, new)
        if len(files) < MOST_LISTED:
            sizes = {"size": new.size if new else None, "before": old.size if old else None}
            files.append({"path": _printable(name)[:MOST_PATH], "change": change, **sizes, "shown": shown})
    return {"files": files, "count": len(names), "diff": differences.text, "cut": differences.cut}


def _is_same(before: Workspace, now: Workspace, name: str) -> bool:
    old, new = before.get(name), now.get(name)
    return old is not None and new is not None and _same(old, new)


class _Differences:
    """Differences of files behind each other, as long as there is room and time."""

    def __init__(self) -> None:
        self.text = ""
        self.cut = False
        """Something was left out for want of room or time."""
        self._left = MOST_DIFF
        self._until = time.monotonic() + DIFF_S

    def add(self, name: str, old: FileState | None, new: FileState | None) -> bool:
        """Show how a file changed; False: it is no text, or too long."""
        before, after = ("" if one is None else one.text for one in (old, new))
        if before is None or after is None:
            return False
        lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
        if max(map(len, lines)) > MOST_LINES or time.monotonic() > self._until or not self._left:
            self.cut = True
            return False
        sides = ("/dev/null" if old is None else f"a/{name}", "/dev/null" if new is None else f"b/{name}")
        for line in difflib.unified_diff(lines[0], lines[1], _printable(sides[0]), _printable(sides[1])):
            body = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n").encode(errors="replace")
            self.text += body[: self._left].decode(errors="ignore")
            self._left -= len(body)
            if self._left < 0:
                self._left, self.cut = 0, True
                break
        return True


def _printable(name: str) -> str:
    return name.encode(errors="surrogateescape").decode(errors="replace")


# Moving --------------------------------------------------------------------------------------------------------------


def pack(workspace: Path, send: Callable[[bytes], None], most: int) -> None:
    """Send a workspace in pieces. Raises ProgramFault where it has more than so many bytes."""
    stream = cast("IO[bytes]", _Sent(send, most))
    with tarfile.open(fileobj=stream, mode="w|", bufsize=PIECE, format=tarfile.PAX_FORMAT) as packed:
        packed.add(workspace, arcname=".", filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Keep files, folders and links, without their owners."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode |= stat.S_IRUSR | stat.S_IWUSR | (stat.S_IXUSR if member.isdir() else 0)
    return member


class _Sent(io.RawIOBase):
    """Takes what is packed."""

    def __init__(self, send: Callable[[bytes], None], most: int) -> None:
        super().__init__()
        self._send, self._left, self._most = send, most, most

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Send on. Raises ProgramFault."""
        body = bytes(data)
        self._left -= len(body)
        if self._left < 0:
            raise ProgramFault(f"workspace: it has more than {self._most // 2**20} MiB")
        self._send(body)
        return len(body)


def unpack(pieces: Iterator[bytes], workspace: Path) -> None:
    """Lay out what was packed; what leads out of the workspace is left out. Raises ProgramFault."""
    stream = cast("IO[bytes]", io.BufferedReader(_Received(pieces), PIECE))
    try:
        with tarfile.open(fileobj=stream, mode="r|") as packed:
            for member in packed:
                try:
                    extract(packed, member, workspace)
                except (OSError, KeyError):
                    continue
    except tarfile.TarError as error:
        raise ProgramFault(f"workspace: it cannot be unpacked: {error}") from None
    for _ in pieces:  # padding behind the end
        continue


class _Received(io.RawIOBase):
    """Gives pieces as a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what has come."""
        while not self._rest:
            if (piece := next(self._pieces, None)) is None:
                return 0
            self._rest = piece
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
