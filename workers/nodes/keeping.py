"""The node looks after the checkpoints on its disk: what is let go leaves, what is harmed is told, what is waited for
stays.

Invariants: a folder leaves only when its row says `removing`, which the store decides; it loses its name first, then
its claims in the state plane, then the row is told, and each of it may be done twice. Nothing outside the run's own
folder of checkpoints in this home is ever removed. What a copy waits for is claimed here until the copy has it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import structlog

from flexmarl.host.backups import removals_held
from flexmarl.store.control import checkpoint_rows
from flexmarl.store.control.checkpoint_rows import Folder
from flexmarl.store.data import lineage
from workers.training.folders import Inspector, remove, root_of
from workers.training.version_store import holder_of, owner_of
from workers.transfer import LocalTier, StateError

log = structlog.get_logger(__name__)
Store = Callable[[Callable[[psycopg.Connection], Any]], Awaitable[Any]]

TEND_S = 2.0
INSPECT_S = 20.0
GRACE_S = 60.0
COPIES = "copies"
"""Owner of what runs wait for that begin with another run's weights."""


class Keeping:
    def __init__(self, home: str | Path, node: str, store: Store) -> None:
        self._home = home
        self._node = node
        self._store = store
        self._inspector = Inspector()
        self._inspected = float("-inf")
        self._waited = True
        """Something may be claimed for copies."""

    async def tend(self) -> None:
        """Do what is due; everything of it again after a failure."""
        if not removals_held(self._home):
            await self._hold_for_copies()
            await self._remove_leaving()
        if time.monotonic() - self._inspected >= INSPECT_S:
            await self._inspect()
            self._inspected = time.monotonic()

    async def _remove_leaving(self) -> None:
        for folder in await self._store(lambda conn: checkpoint_rows.leaving(conn, self._node)):
            if await asyncio.to_thread(self._let_go, folder):
                await self._store(lambda conn, folder=folder: checkpoint_rows.gone(conn, folder))  # type: ignore[misc]

    def _let_go(self, folder: Folder) -> bool:
        path = self._place(folder)
        try:
            remove(path)
            for policy, part in folder.parts.items():
                holder = LocalTier(self._home, holder_of(owner_of(folder.run_id, policy), path.name))
                for digest in filter(None, (str(part["digest"]), str(part["state"]))):
                    holder.evict(digest)
        except OSError as error:
            log.warning("not removed", path=str(path), error=str(error))
            return False
        self._inspector.forget(path)
        log.info("checkpoint removed", path=str(path), run_id=folder.run_id)
        return True

    def _place(self, folder: Folder) -> Path:
        """Return where a checkpoint lies on this node. Its row says where it was written: the home may have moved."""
        return root_of(self._home, folder.run_id) / f"step-{folder.step}"

    async def _inspect(self) -> None:
        for folder in await self._store(lambda conn: checkpoint_rows.on_node(conn, self._node)):
            damage = await asyncio.to_thread(self._inspector.look, self._place(folder))
            state, text = ("whole", "") if damage is None else (damage.state, damage.text)
            if state != folder.state:
                log.warning("checkpoint", state=state, detail=text, run_id=folder.run_id, step=folder.step)
                await self._store(
                    lambda conn, folder=folder, state=state, text=text: checkpoint_rows.found(conn, folder, state, text)  # type: ignore[misc]
                )

    async def _hold_for_copies(self) -> None:
        awaited = set().union(*(await self._store(lineage.awaited)).values())
        if awaited or self._waited:
            await asyncio.to_thread(self._claim, awaited)
        self._waited = bool(awaited)

    def _claim(self, awaited: set[str]) -> None:
        tier, kept = LocalTier(self._home, COPIES), set(awaited)
        for digest in awaited:
            try:
                if tier.claim(digest) and (base := str(tier.meta(digest).get("base", ""))):
                    kept.add(base)
                    tier.claim(base)
            except StateError as error:  # whoever binds it is told so, and may bring it from elsewhere
                log.warning("a copy waits for what is damaged", digest=digest, error=str(error))
        for digest in set(tier.claims()) - kept:
            tier.evict(digest)
