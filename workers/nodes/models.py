"""The node imports models that people ask for, and holds those that its devices need.

Invariants: an import is a process that can be killed, and its row says who has it; what comes of it counts only while
this node still has the row. Models that leases on this node's devices name are fetched before anybody asks, and claimed
as long as they are named; what this node imported, it keeps.
"""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import structlog

from flexmarl.contracts.hub_models import SETTING as HUB
from flexmarl.contracts.uploaded_models import SETTING as CONTROL_URL
from flexmarl.contracts.uploaded_models import upload_token
from flexmarl.store.control import model_rows
from flexmarl.store.control.model_rows import Import
from workers.errors import ImportRefused
from workers.models.errors import ModelRefused
from workers.models.stored import OWNER
from workers.nodes.bringing import elsewhere
from workers.nodes.import_process import FETCHED, ImportProcess, ImportStopped, remove, run_import, secret_of
from workers.nodes.merging import ArchiveError, WholeModels
from workers.settings import Settings
from workers.training.folders import root_of
from workers.transfer import LocalTier, StateError
from workers.transfer.base import Source
from workers.transfer.objects import ObjectStore
from workers.transfer.plane import Plane

log = structlog.get_logger(__name__)
Store = Callable[[Callable[[psycopg.Connection], Any]], Awaitable[Any]]

TEND_S = 1.0
LEASE_S = 15.0
GRACE_S = 3600.0
"""A claim is younger than that while its row may still be on its way."""


class Importing:
    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._checkpoints = WholeModels(settings.home, settings.model_roots)
        # What an agent that was killed here had fetched: its import ended with it.
        shutil.rmtree(Path(settings.home, FETCHED), ignore_errors=True)

    async def tend(self) -> None:
        """Import what waits, one model at a time."""
        roots = [name for root in self._settings.model_roots for name in (root, os.path.realpath(root))]
        unable = () if self._settings.control_url else ("upload",)
        taken = await self._store(lambda conn: model_rows.take(conn, self._settings.node, LEASE_S, roots, unable))
        if taken is None:
            return
        log.info("importing a model", model=str(taken.id), source=dict(taken.source))
        try:
            last = await self._imported(taken)
        except ImportStopped:
            log.info("import stopped", model=str(taken.id))
            return
        if "digest" in last:
            await self._store(lambda conn: model_rows.done(conn, taken, last["digest"], last["facts"]))
        else:
            await self._store(lambda conn: model_rows.failed(conn, taken, last["code"], last["detail"]))
        log.info("import ended", model=str(taken.id), code=last.get("code", ""))

    async def _imported(self, taken: Import) -> dict[str, Any]:
        """Run the import and return its last line. Raises ImportStopped."""
        memory = await self._store(model_rows.largest_memory)
        fetched = Path(self._settings.home, FETCHED, str(taken.id))
        try:
            token = self._token(taken)
            asked = [str(self._settings.home), *await self._source(taken, fetched), f"--memory={memory}"]
        except ArchiveError as error:
            return {"code": error.code, "detail": error.detail}
        except (ModelRefused, ImportRefused) as error:
            return {"code": error.code, "detail": str(error)}

        async def going(line: dict[str, Any]) -> bool:
            return bool(
                await self._store(partial(model_rows.goes_on, taken=taken, now_at=line["now"], lease_s=LEASE_S))
            )

        try:
            return await run_import(ImportProcess("workers.models.importing", asked, token, fetched), going)
        finally:
            await remove(fetched)

    async def _source(self, taken: Import, fetched: Path) -> list[str]:
        """Return what a process is to import, and what it may read for that. Raises ArchiveError."""
        if address := {"hub": self._settings.hub, "upload": self._settings.control_url}.get(taken.source["type"]):
            await asyncio.to_thread(fetched.mkdir, parents=True, exist_ok=True)
            return [msgspec.json.encode(taken.source).decode(), f"--server={address}", f"--fetched={fetched}"]
        if taken.from_run is None:
            roots = [f"--model-root={root}" for root in self._settings.model_roots]
            return [msgspec.json.encode(taken.source).decode(), *roots]
        checkpoint = root_of(self._settings.home, taken.from_run) / f"step-{taken.source['step']}"
        await self._checkpoints.check(checkpoint)
        folder = await self._checkpoints.folder(checkpoint, taken.source["policy"])
        return [msgspec.json.encode({"type": "folder", "path": str(folder)}).decode(), f"--checkpoint={folder}"]

    def _token(self, taken: Import) -> str:
        """Return what proves to a hub or the control plane who asks. Raises ModelRefused where an address or a secret
        is not set here."""
        if taken.source["type"] == "upload":
            if not self._settings.control_url:
                text = f"The operator of node {self._settings.node} has not set {CONTROL_URL}."
                raise ModelRefused("upload_unreachable", text)
            return upload_token(self._settings.cluster_key, taken.source["id"])
        if taken.source["type"] == "hub" and not self._settings.hub:
            raise ModelRefused("hub_off", f"The operator of node {self._settings.node} has not set {HUB}.")
        return secret_of(self._settings, taken.source.get("secret", ""))


class Holding:
    """Fetches and claims the models that this node is to hold."""

    def __init__(self, settings: Settings, store: Store, address: str) -> None:
        """`address` is this node's own, which is not asked."""
        self._settings = settings
        self._store = store
        self._address = address
        self._tier = LocalTier(settings.home, OWNER)
        self._objects = [ObjectStore(settings.object_store)] if settings.object_store else []
        self._failing: set[str] = set()

    async def tend(self) -> None:
        """Fetch what is missing, and let go of what nobody names any more."""
        wanted = await self._store(lambda conn: model_rows.held_by(conn, self._settings.node))
        missing = await asyncio.to_thread(self._missing, wanted)
        if missing:
            there = await self._store(partial(elsewhere, self._settings, self._address))
            await asyncio.to_thread(self._bring, missing, [*there.sources, *self._objects])

    def _missing(self, wanted: set[str]) -> list[str]:
        """Claim what is here, let go of the rest; return what is not here."""
        claimed = self._tier.claims()
        if claimed.keys() - wanted:
            self._tier.collect(wanted, GRACE_S)
        return [digest for digest in sorted(wanted) if not self._here(digest, digest in claimed)]

    def _here(self, digest: str, claimed: bool) -> bool:
        try:
            return self._tier.locate(digest) is not None if claimed else self._tier.claim(digest)
        except StateError:
            return False

    def _bring(self, missing: list[str], sources: list[Source]) -> None:
        plane = Plane(self._tier, sources=sources)
        for digest in missing:
            try:
                brought = plane.bring(digest)
            except (StateError, OSError) as error:
                if digest not in self._failing:  # once per trouble
                    log.warning("model not brought", digest=digest, error=str(error))
                self._failing.add(digest)
            else:
                self._failing.discard(digest)
                log.info("model brought", digest=digest, bytes=brought.bytes)
