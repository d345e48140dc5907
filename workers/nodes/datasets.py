"""The node fetches datasets of a hub that people ask for, and keeps what it fetched in the database.

Invariants: a fetch is a process that can be killed, and its row says who has it; what comes of it counts only while
this node still has the row. Nothing of a fetch stays on this host.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import structlog

from flexmarl.contracts.hub_models import SETTING as HUB
from flexmarl.store.control import dataset_fetches
from flexmarl.store.control.dataset_fetches import TakenFetch
from workers.errors import ImportRefused
from workers.nodes.import_process import ImportProcess, ImportStopped, remove, run_import, secret_of
from workers.settings import Settings

log = structlog.get_logger(__name__)
Store = Callable[[Callable[[psycopg.Connection], Any]], Awaitable[Any]]

TEND_S = 1.0
LEASE_S = 15.0
PART_BYTES = 2**20
FOLDER = "fetched-datasets"
"""Below the home, for what is fetched."""


class DatasetFetching:
    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        # What an agent that was killed here had fetched: whoever takes the fetch next begins it again.
        shutil.rmtree(Path(settings.home, FOLDER), ignore_errors=True)

    async def tend(self) -> None:
        """Fetch what waits, one at a time."""
        taken = await self._store(lambda conn: dataset_fetches.take(conn, self._settings.node, LEASE_S))
        if taken is None:
            return
        log.info("fetching a dataset", fetch=str(taken.id), repository=taken.source["repository"])
        folder = Path(self._settings.home, FOLDER, str(taken.id))
        try:
            code = await self._fetched(taken, folder)
        except ImportStopped:
            log.info("fetch stopped", fetch=str(taken.id))
            return
        finally:
            await remove(folder)
        log.info("fetch ended", fetch=str(taken.id), code=code)

    async def _fetched(self, taken: TakenFetch, folder: Path) -> str:
        """Fetch and keep; return the code of what failed, empty where nothing did. Raises ImportStopped."""
        try:
            last = await self._run(taken, folder)
            if "archive" in last:
                await self._keep(taken, Path(last["archive"]))
        except psycopg.errors.DiskFull:
            last = {"code": "state_full", "detail": "The disk of the database is full; free some of it."}
        except ImportRefused as error:
            last = {"code": error.code, "detail": str(error)}
        if "code" in last:
            await self._store(lambda conn: dataset_fetches.failed(conn, taken, last["code"], last["detail"]))
            return str(last["code"])
        digest, size = last.get("digest", ""), last.get("bytes", 0)
        await self._store(lambda conn: dataset_fetches.done(conn, taken, last["found"], digest, size))
        return ""

    async def _run(self, taken: TakenFetch, folder: Path) -> dict[str, Any]:
        if not self._settings.hub:
            raise ImportRefused("hub_off", f"The operator of node {self._settings.node} has not set {HUB}.")
        token = secret_of(self._settings, taken.source.get("secret", ""))
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        source = msgspec.json.encode(taken.source).decode()
        asked = [source, self._settings.hub, str(folder), str(taken.most_bytes)]

        async def going(line: dict[str, Any]) -> bool:
            now = (line["now"], line.get("done", 0), line.get("bytes", 0))
            return bool(await self._store(partial(dataset_fetches.goes_on, taken=taken, now=now, lease_s=LEASE_S)))

        return await run_import(ImportProcess("workers.datasets.fetching", asked, token, folder), going)

    async def _keep(self, taken: TakenFetch, archive: Path) -> None:
        """Put the archive into the database, part by part. Raises ImportStopped."""
        size = archive.stat().st_size
        now = ("storing", size, size)
        await self._store(partial(dataset_fetches.goes_on, taken=taken, now=now, lease_s=LEASE_S))
        with archive.open("rb") as body:
            place = 0
            while part := await asyncio.to_thread(body.read, PART_BYTES):
                keep = partial(dataset_fetches.put_part, taken=taken, place=place, body=part, lease_s=LEASE_S)
                if not await self._store(keep):
                    raise ImportStopped
                place += 1
