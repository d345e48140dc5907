"""Copies of contents in an object store, which outlive every host: what rows speak of, and nothing else.

Invariants: the rows say what is kept (store), so a node that dies owes nothing and a new one goes on where it stopped.
Every node copies what lies on its own disk; what is there already is not copied again, and of what has gone there a
copy is made anew. A store that does not answer stops nothing: it is asked again. Only what is older than `GRACE_S`,
which is longer than the longest copy takes, is ever removed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import psycopg
import structlog
from blake3 import blake3

from flexmarl.host.backups import removals_held
from flexmarl.store.data import references
from workers.settings import Settings
from workers.transfer import CorruptState, LocalTier, StateError, StateMissing
from workers.transfer.contents import Pieces
from workers.transfer.objects import ObjectStore

log = structlog.get_logger(__name__)

LOOK_S = 2.0
"""Pause between two looks at the rows: a version is copied so long after its step at most, and what its bytes take."""
COLLECT_S = 600.0
GRACE_S = 3600.0

Wanted = set[str]


class Copies:
    """What a node adds to the object store and takes from it; `tend` is called again and again."""

    def __init__(
        self, settings: Settings, store: Callable[[Callable[[psycopg.Connection], Wanted]], Awaitable[Wanted]]
    ) -> None:
        self._rows = store
        self._home = settings.home
        self._tier = LocalTier(settings.home, "copied")
        self._objects = ObjectStore(settings.object_store) if settings.object_store else None
        self._installation = blake3(settings.cluster_key.encode()).hexdigest()[:16]
        self._there: set[str] = set()
        """Digests that are known to lie in the store."""
        self._collected = -COLLECT_S
        self._failing = ""

    async def tend(self) -> None:
        """Copy what is wanted and not there; from time to time, look at all that is there."""
        if self._objects is None:
            return
        wanted = await self._rows(references.contents)
        try:
            await asyncio.to_thread(self._tend, self._objects, wanted)
        except (StateError, OSError) as error:
            if str(error) != self._failing:  # once per trouble
                log.warning("object store does not answer", error=str(error))
            self._failing = str(error)
        else:
            self._failing = ""

    def _tend(self, objects: ObjectStore, wanted: Wanted) -> None:
        if (now := time.monotonic()) - self._collected >= COLLECT_S:
            objects.belongs_to(self._installation)
            gone = [] if removals_held(self._home) else objects.collect(wanted, GRACE_S)
            self._there = objects.whole()
            self._collected = now
            if gone:
                log.info("let go in the object store", contents=len(gone))
        for digest in wanted - self._there:
            self._copied(objects, digest)

    def _copied(self, objects: ObjectStore, digest: str) -> bool:
        """Copy a content and what it is laid over, if they lie here unharmed."""
        try:
            description = self._tier.description(digest)
            base = str(description.described.get("base", ""))
            if base and base not in self._there and not self._copied(objects, base):
                return False
            objects.take(digest, self._tier.manifest(digest), partial(self._read, digest))
        except (StateMissing, CorruptState):
            return False
        self._there.add(digest)
        log.info("copied to the object store", digest=digest, bytes=description.bytes)
        return True

    def _read(self, digest: str, number: int) -> Pieces:
        room = memoryview(bytearray(self._tier.description(digest).size(number)))
        self._tier.read_chunk(digest, number, room)
        return [room]
