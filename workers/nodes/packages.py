"""The node builds packages that people ask for.

Invariants: a build is a process that can be killed, and its row says who has it; what comes of it counts only while
this node still has the row.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import structlog

from flexmarl.store.control import package_rows
from flexmarl.store.control.package_rows import TakenBuild
from workers.packages.building import BuildOrder
from workers.packages.folders import MAKING, new_folder, root_of
from workers.packages.running import NotWanted, read_log, run_build
from workers.settings import Settings

log = structlog.get_logger(__name__)
Store = Callable[[Callable[[psycopg.Connection], Any]], Awaitable[Any]]

TEND_S = 1.0
LEASE_S = 20.0
NO_FILE = "The file that was uploaded is not kept any more; upload it again."


class Packages:
    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        # What an agent that was killed here was building: its build ended with it.
        for left in root_of(settings.home).glob(f"{MAKING}*"):
            shutil.rmtree(left, ignore_errors=True)

    async def tend(self) -> None:
        """Build what waits, one package at a time."""
        node = self._settings.node
        taken = await self._store(lambda conn: package_rows.take(conn, node, LEASE_S))
        if taken is None:
            return
        log.info("building a package", package=str(taken.id), name=taken.name)
        place = await asyncio.to_thread(new_folder, self._settings.home)
        try:
            await self._built(taken, place)
        except NotWanted:
            log.info("build stopped", package=str(taken.id))
        finally:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)

    async def _built(self, taken: TakenBuild, place: Path) -> None:
        order = await self._order(taken, place)
        if order is None:
            await self._store(lambda conn: package_rows.failed(conn, taken, "file_gone", NO_FILE, ""))
            return

        async def told(now: str, text: str) -> bool:
            going = partial(package_rows.goes_on, taken=taken, now_at=now, log=text, lease_s=LEASE_S)
            return bool(await self._store(going))

        written = place / "log"
        said = await run_build(self._settings.home, order, written, told)
        text = read_log(written)
        if "digest" in said:
            await self._store(lambda conn: package_rows.ready(conn, taken, said, text))
        else:
            await self._store(lambda conn: package_rows.failed(conn, taken, said["code"], said["detail"], text))
        log.info("build ended", package=str(taken.id), code=said.get("code", ""))

    async def _order(self, taken: TakenBuild, place: Path) -> BuildOrder | None:
        """Return what is to be built; None where its file is not kept."""
        source = taken.source
        if source["type"] == "requirement":
            return BuildOrder(taken.name, source["requirement"], entry=source.get("entry", ""))
        body = await self._store(lambda conn: package_rows.file(conn, source["digest"]))
        if body is None:
            return None
        path = place / source["file"]
        await asyncio.to_thread(path.write_bytes, body)
        return BuildOrder(taken.name, "", str(path), source.get("entry", ""))
