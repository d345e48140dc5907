"""Whole models of this node's checkpoints: as they lie there, or an adapter merged with its base.

Invariant: nothing is given of a folder that is not what was written.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from flexmarl.host.exits import last_words
from flexmarl.store.server_paths import without_paths
from workers.training.folders import Inspector
from workers.training.merging import merged_folder

log = structlog.get_logger(__name__)

MERGE_S = 600.0
ADAPTER = "adapter_config.json"


class ArchiveError(Exception):
    """What was asked for cannot be given; `code` is stable, the text says what to do."""

    def __init__(self, code: str, detail: str, status: int = 409) -> None:
        super().__init__(detail)
        self.code, self.detail, self.status = code, detail, status


class WholeModels:
    """What a node makes of its checkpoints, one at a time."""

    def __init__(self, home: str | Path, model_roots: Sequence[str] = ()) -> None:
        self._home = home
        self._model_roots = tuple(model_roots)
        self._inspector = Inspector()
        self._merging = asyncio.Lock()

    async def check(self, checkpoint: Path) -> None:
        """Raise ArchiveError unless a checkpoint's folder is what was written."""
        damage = await asyncio.to_thread(self._inspector.look, checkpoint)
        if damage is not None:
            raise ArchiveError(f"checkpoint_{damage.state}", damage.text)

    async def folder(self, checkpoint: Path, policy: str) -> Path:
        """Return the folder of a policy's whole model, merged first where it is an adapter. Raises ArchiveError."""
        if not (checkpoint / policy / ADAPTER).exists():
            return checkpoint / policy
        await self._merge(checkpoint, policy)
        return merged_folder(checkpoint, policy)

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
            except TimeoutError as late:
                raise ArchiveError("not_merged", f"{policy} was not merged within {MERGE_S:.0f} s") from late
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode:
            last = without_paths(last_words(said, process.returncode))
            log.warning("not merged", folder=str(folder), policy=policy, error=last)
            raise ArchiveError("not_merged", f"{policy} could not be merged: {last}; download the adapter instead")
