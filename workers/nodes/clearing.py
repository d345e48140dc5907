"""The node gives room back: what is left of deleted runs on its disk, what ended runs no longer need, and models and
builds of packages that it made and nobody uses.

Invariants: of a run only goes what the store says was deleted; a run that the store does not know is left alone, since
the folder may have been used with another database. Of an ended run the versions stay that rows speak of
(`flexmarl.store.data.references`), so it can still be resumed, forked, talked to and restored from its checkpoints. A
made model goes when no run on this node's devices names it and no process wanted it for long, a build when no run that
has not ended names it; both can be made again. All of it may be done twice, and goes on after any interruption.
"""

import asyncio
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import psycopg
import structlog

from flexmarl.host.backups import removals_held
from flexmarl.store.control import deletions, model_rows, package_rows
from flexmarl.store.data import references
from workers.made_folders import remove_unused
from workers.models.packaged import place_name
from workers.packages import folders as packages
from workers.training.folders import root_of
from workers.training.version_store import owner_of
from workers.transfer import LocalTier

log = structlog.get_logger(__name__)
Store = Callable[[Callable[[psycopg.Connection], Any]], Awaitable[Any]]

TEND_S = 5.0
LOOK_S = 600.0
"""Every so often everything on the disk is looked at, also when nobody waits for it."""
ENDED_S = 600.0
"""A run has ended for so long before versions of it go: its trainers are gone by then."""
UNUSED_S = 7200.0
"""A made model stays so long after a process last wanted it: longer than an import may take."""
DAY_S = 86_400.0
_OWNER = re.compile(r"\.claim\.(?P<owner>run-(?P<run>\d+)-.+)$")
_FOLDER = re.compile(r"^run-(?P<run>\d+)$")


class Clearing:
    def __init__(self, home: str | Path, node: str, store: Store, keep_builds_days: int = 30) -> None:
        """`keep_builds_days`: how long a build stays that nobody uses; 0: for ever."""
        self._home = Path(home)
        self._keep_builds_s = keep_builds_days * DAY_S
        self._node = node
        self._store = store
        self._looked = float("-inf")

    async def tend(self) -> None:
        """Do what is due; nothing while a backup of this home is made."""
        if removals_held(self._home):
            return
        waiting: set[int] = await self._store(lambda conn: deletions.awaiting(conn, self._node))
        look = time.monotonic() - self._looked >= LOOK_S
        if not waiting and not look:
            return
        await self._clear(waiting)
        if look:
            await self._thin()
            await self._unmake()
            if self._keep_builds_s:
                await self._unbuild()
            self._looked = time.monotonic()

    async def _clear(self, waiting: set[int]) -> None:
        here = await asyncio.to_thread(self._present)
        gone: set[int] = await self._store(lambda conn: deletions.deleted_among(conn, here)) if here else set()
        for run_id in sorted(gone):
            await asyncio.to_thread(self._remove, run_id)
        left = await asyncio.to_thread(self._present) if gone else here
        if done := waiting - left:
            await self._store(lambda conn: deletions.cleared(conn, self._node, done))

    async def _thin(self) -> None:
        """Let go of versions of ended runs that no row speaks of."""
        kept: dict[int, dict[str, set[str]]] = await self._store(lambda conn: references.of_ended(conn, ENDED_S))
        for run_id, policies in kept.items():
            for policy, digests in policies.items():
                await asyncio.to_thread(self._evict, owner_of(run_id, policy), digests)

    async def _unmake(self) -> None:
        """Remove folders of models that this node made and nobody uses."""
        used: list[Mapping[str, Any]] = await self._store(lambda conn: model_rows.used_by(conn, self._node))
        kept = {place_name(one["name"]) if one["type"] == "package" else one.get("digest", "") for one in used}
        await self._removed("models", kept, UNUSED_S)

    async def _unbuild(self) -> None:
        """Remove builds of packages that nobody uses; whoever names one later has it made again."""
        kept: list[str] = await self._store(package_rows.builds_of_runs)
        await self._removed(packages.FOLDER, kept, self._keep_builds_s)

    async def _removed(self, folder: str, kept: Collection[str], unused_s: float) -> None:
        try:
            gone = await asyncio.to_thread(remove_unused, self._home / folder, kept, unused_s)
        except OSError as error:  # they stay until the next look
            log.warning("not removed", folder=folder, error=str(error))
        else:
            if gone:
                log.info("unused folders removed", folder=folder, names=gone)

    def _evict(self, owner: str, kept: set[str]) -> None:
        tier = LocalTier(self._home, owner)
        for digest in set(tier.claims()) - kept:
            try:
                tier.evict(digest)
            except OSError as error:  # it stays until the next look
                log.warning("not removed", digest=digest, error=str(error))

    def _present(self) -> set[int]:
        """List the runs of which something lies here."""
        folders = [*self._listed("checkpoints"), *self._listed("payloads")]
        found = [_FOLDER.search(name) for name in folders] + [_OWNER.search(name) for name in self._listed("state")]
        return {int(match["run"]) for match in found if match}

    def _listed(self, folder: str) -> list[str]:
        root = self._home / folder
        return [path.name for path in root.iterdir()] if root.is_dir() else []

    def _remove(self, run_id: int) -> None:
        """Remove a deleted run's checkpoints, payloads and claims."""
        claims = filter(None, map(_OWNER.search, self._listed("state")))
        owners = {match["owner"] for match in claims if int(match["run"]) == run_id}
        try:
            for folder in (root_of(self._home, run_id), self._home / "payloads" / f"run-{run_id}"):
                shutil.rmtree(folder, ignore_errors=True)
            for owner in owners:
                tier = LocalTier(self._home, owner)
                for digest in tier.claims():
                    tier.evict(digest)
        except OSError as error:  # it is tried again, and the deletion does not end before
            log.warning("not removed", run_id=run_id, error=str(error))
            return
        log.info("run removed", run_id=run_id)
