"""Chunks that receivers of one content pass on to each other, so that who made it sends each of them about once.

Invariants. Who receives what from the origin follows from a chunk's place in the content and the receivers' addresses,
so they agree without a word between them: each brings its own chunks first and then takes those of others from them. A
chunk that its receiver does not give in time, or gives with other bytes, or whose receiver is away or brings something
else, comes from the origin, and that receiver is asked no more. A content of fewer chunks than receivers comes from the
origin alone.

With n receivers on links of equal speed all have the content after about twice the time of one transfer, not n times,
as where relays pass it along a chain (Laminar, arXiv 2510.12633), but without an order in which they would wait.
"""

import threading
import time
from collections.abc import Mapping, Sequence

from workers.transfer.base import Coming, NotYet, Source, StateError
from workers.transfer.contents import name_of
from workers.transfer.parallel import AGAIN_S

LEAST_WAIT_S = 1.0
"""So long at least may a receiver be bringing a chunk once one's own are here; where those took longer, as long."""


class Relayed(Source):
    """An origin whose chunks also come from other receivers, as a `Source`. For one `bring` at a time."""

    def __init__(self, origin: Source, own: str, others: Mapping[str, Source]) -> None:
        """`own` is this receiver's address; `others` are those that are likely to receive the same, by theirs."""
        self.name = origin.name
        self._origin = origin
        self._own = own
        self._others = others
        self._lock = threading.Lock()
        self._receivers: dict[str, str] = {}
        """Who brings each chunk from the origin."""
        self._late: set[str] = set()
        """Receivers that are asked no more."""
        self._lacked: dict[str, float] = {}
        """When a receiver last lacked a chunk."""
        self._began = self._arrived = time.monotonic()
        self.passed_on = 0
        """Chunks that came from other receivers."""

    def manifest(self, digest: str) -> bytes:
        self._began = self._arrived = time.monotonic()
        return self._origin.manifest(digest)

    def delta(self, digest: str, bases: Sequence[str], most: float) -> str | None:
        return self._origin.delta(digest, bases, most)

    def order(self, chunks: Sequence[str]) -> list[int]:
        """Return in which order chunks are to be fetched: one's own, then those of others, each beginning elsewhere."""
        places = sorted([self._own, *self._others])
        if len(chunks) < len(places):
            return list(range(len(chunks)))
        mine, many = places.index(self._own), len(places)
        self._receivers.update({chunk: places[number % many] for number, chunk in enumerate(chunks)})
        return sorted(range(len(chunks)), key=lambda number: (number - mine) % many)

    def fetch(self, digest: str, chunk: str, room: memoryview) -> None:
        receiver = self._receivers.get(chunk, self._own)
        if receiver != self._own and self._passed_on(receiver, digest, chunk, room):
            with self._lock:
                self.passed_on += 1
            return
        self._origin.fetch(digest, chunk, room)
        if receiver == self._own:
            self._arrived = time.monotonic()

    def _passed_on(self, receiver: str, digest: str, chunk: str, room: memoryview) -> bool:
        now = time.monotonic()
        if now - self._lacked.get(receiver, 0.0) < AGAIN_S:
            raise NotYet(digest, f"{receiver} lacked another chunk a moment ago")
        if receiver not in self._late:
            try:
                self._others[receiver].fetch(digest, chunk, room)
                if name_of([room]) == chunk:
                    return True
                self._late.add(receiver)  # it holds something else; the origin may hold the chunk
            except Coming as coming:
                self._lacked[receiver] = now
                if now <= self._arrived + max(LEAST_WAIT_S, self._arrived - self._began):
                    raise NotYet(digest, f"{receiver} does not have {chunk[:12]} yet") from coming
                self._late.add(receiver)
            except StateError:  # among them: it does not bring the content
                self._late.add(receiver)
        return False
