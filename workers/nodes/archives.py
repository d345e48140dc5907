"""Checkpoints of this node as archives: a tar of Hugging Face folders, made while it is sent.

Invariants: nothing is sent of a folder that is not what was written; every name asked for is one that the checkpoint's
manifest has, so no path of a request reaches the disk. An adapter goes with the base that lies beside it, and names it
by its place in the archive. The length is known before the first byte.
"""

import asyncio
import json
import sys
import tarfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiohttp import web

from flexmarl.store.server_paths import without_paths
from workers.training.folders import Inspector, files_of, listed, root_of
from workers.training.merging import merged_folder

log = structlog.get_logger(__name__)

BLOCK = tarfile.BLOCKSIZE
PIECE = 2**20
MERGE_S = 600.0
ADAPTER = "adapter_config.json"


class ArchiveError(Exception):
    """An archive cannot be made; `code` is stable, the text says what to do."""

    def __init__(self, code: str, detail: str, status: int = 409) -> None:
        super().__init__(detail)
        self.code, self.detail, self.status = code, detail, status


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A file of an archive: its name there, and where its bytes are."""

    name: str
    source: Path | bytes

    @property
    def size(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    @property
    def header(self) -> bytes:
        info = tarfile.TarInfo(self.name)
        info.size, info.mode = self.size, 0o644
        return info.tobuf(tarfile.PAX_FORMAT)

    @property
    def padding(self) -> bytes:
        return bytes(-self.size % BLOCK)


class Archives:
    """What a node serves of its checkpoints. Who may ask is checked by whoever mounts the route."""

    def __init__(self, home: str | Path, model_roots: Sequence[str] = ()) -> None:
        self._home = home
        self._model_roots = tuple(model_roots)
        self._inspector = Inspector()
        self._merging = asyncio.Lock()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send an archive; with `check=1` only say how long it is and what is in it."""
        asked = request.query
        try:
            folder = root_of(self._home, int(request.match_info["run"])) / f"step-{int(request.match_info['step'])}"
            entries = await self._entries(folder, asked.get("policy", ""), asked.get("form", ""))
        except (ArchiveError, ValueError) as refused:
            code, status = (refused.code, refused.status) if isinstance(refused, ArchiveError) else ("bad_request", 422)
            return web.json_response({"code": code, "detail": str(refused)}, status=status)
        size = sum(len(entry.header) + entry.size + len(entry.padding) for entry in entries) + 2 * BLOCK
        if asked.get("check"):
            files = [{"name": entry.name, "bytes": entry.size} for entry in entries]
            return web.json_response({"bytes": size, "files": files})
        response = web.StreamResponse(headers={"Content-Type": "application/x-tar", "Content-Length": str(size)})
        await response.prepare(request)
        async for piece in pieces(entries):
            await response.write(piece)
        await response.write_eof()
        return response

    async def _entries(self, folder: Path, policy: str, form: str) -> list[ArchiveEntry]:
        damage = await asyncio.to_thread(self._inspector.look, folder)
        if damage is not None:
            raise ArchiveError(f"checkpoint_{damage.state}", damage.text)
        folders = sorted({name.partition("/")[0] for name in listed(folder)})
        policies = [name for name in folders if not _is_base(folder, name)]
        if policy and policy not in policies:
            raise ArchiveError("unknown_policy", f"policy is {policy}; the checkpoint holds {', '.join(policies)}", 422)
        chosen = [policy] if policy else policies
        adapted = [name for name in chosen if (folder / name / ADAPTER).exists()]
        if form and len(adapted) < len(chosen):
            whole = next(name for name in chosen if name not in adapted)
            raise ArchiveError("no_adapter", f"form is {form}, and {whole} is a whole model; leave form out", 422)
        if form == "merged":
            for name in adapted:
                await self._merge(folder, name)
            roots = {name: merged_folder(folder, name) for name in chosen}
        else:
            bases = {base for name in adapted if (base := _base_inside(folder, name))}
            roots = {name: folder / name for name in [*chosen, *sorted(bases)]}
        return [entry for name, root in roots.items() for entry in _entries_of(folder, name, root)]

    async def _merge(self, folder: Path, policy: str) -> None:
        """Have a process of its own merge, one at a time."""
        async with self._merging:
            if merged_folder(folder, policy).is_dir():
                return
            roots = [f"--model-root={root}" for root in self._model_roots]
            command = [sys.executable, "-m", "workers.training.merging", str(folder), policy, *roots]
            command.append(f"--closed={self._home}")
            process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
            try:
                _, said = await asyncio.wait_for(process.communicate(), MERGE_S)
            except (TimeoutError, asyncio.CancelledError):
                process.kill()
                await process.wait()
                raise
        if process.returncode:
            last = without_paths(said.decode(errors="replace").strip().rpartition("\n")[2])
            log.warning("not merged", folder=str(folder), policy=policy, error=last)
            raise ArchiveError("not_merged", f"{policy} could not be merged: {last}; download the adapter instead")


async def pieces(entries: list[ArchiveEntry]) -> AsyncIterator[bytes]:
    """Yield the bytes of an archive."""
    for entry in entries:
        yield entry.header
        if isinstance(entry.source, bytes):
            yield entry.source
        else:
            with entry.source.open("rb") as file:
                left = entry.size
                while left and (piece := await asyncio.to_thread(file.read, min(PIECE, left))):
                    left -= len(piece)
                    yield piece
        yield entry.padding
    yield bytes(2 * BLOCK)


def _entries_of(folder: Path, name: str, root: Path) -> list[ArchiveEntry]:
    base = _base_inside(folder, name)
    found = []
    for path in files_of(root):
        source: Path | bytes = path
        if base and path.name == ADAPTER:
            config = {**json.loads(path.read_text(encoding="utf-8")), "base_model_name_or_path": base}
            source = json.dumps(config, indent=2).encode()
        found.append(ArchiveEntry(f"{name}/{path.relative_to(root)}", source))
    return found


def _is_base(folder: Path, name: str) -> bool:
    return name in {base for path in folder.iterdir() if path.is_dir() and (base := _base_inside(folder, path.name))}


def _base_inside(folder: Path, policy: str) -> str:
    """Return the name of the folder beside an adapter that it is laid over; empty when that lies elsewhere."""
    try:
        config = json.loads((folder / policy / ADAPTER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    base = Path(str(config.get("base_model_name_or_path", "")))
    return base.name if base.parent == folder else ""
