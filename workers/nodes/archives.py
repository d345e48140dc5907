"""Checkpoints of this node as archives: a tar of Hugging Face folders, made while it is sent.

Invariants: nothing is sent of a folder that is not what was written; every name asked for is one that the checkpoint's
manifest has, so no path of a request reaches the disk. An adapter goes with the base that lies beside it, and names it
by its place in the archive.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from workers.nodes.merging import ADAPTER, ArchiveError, WholeModels
from workers.nodes.tar_streams import ArchiveEntry, sent
from workers.training.folders import files_of, listed, root_of


class Archives:
    """What a node serves of its checkpoints. Who may ask is checked by whoever mounts the route."""

    def __init__(self, home: str | Path, model_roots: Sequence[str] = ()) -> None:
        self._home = home
        self._models = WholeModels(home, model_roots)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send an archive; with `check=1` only say how long it is and what is in it."""
        asked = request.query
        try:
            folder = root_of(self._home, int(request.match_info["run"])) / f"step-{int(request.match_info['step'])}"
            entries = await self._entries(folder, asked.get("policy", ""), asked.get("form", ""))
        except (ArchiveError, ValueError) as refused:
            code, status = (refused.code, refused.status) if isinstance(refused, ArchiveError) else ("bad_request", 422)
            return web.json_response({"code": code, "detail": str(refused)}, status=status)
        return await sent(request, entries)

    async def _entries(self, folder: Path, policy: str, form: str) -> list[ArchiveEntry]:
        await self._models.check(folder)
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
            roots = {name: await self._models.folder(folder, name) for name in chosen}
        else:
            bases = {base for name in adapted if (base := _base_inside(folder, name))}
            roots = {name: folder / name for name in [*chosen, *sorted(bases)]}
        return [entry for name, root in roots.items() for entry in _entries_of(folder, name, root)]


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
