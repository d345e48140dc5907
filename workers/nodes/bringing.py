"""What a command speaks of lies on this node before its child is told: missing contents come from other nodes, or from
the installation's object store.

Invariants: only the node speaks to other nodes, under the cluster key, or, with a node token, to those of its pool
under keys of theirs; children see neither. A content comes whole or not at all. What cannot be brought is left to the
child, which refuses it by name. Contents that came are claimed for `KEPT_S`; a trainer that holds them claims them
itself meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import psycopg
import structlog

from flexmarl.store.control.nodes import NodePeer, addresses_for, peers_of, receivers_of
from flexmarl.store.control.runs import publication_content
from flexmarl.store.node_operations import NO_RUN
from workers.door.contents import DoorPeer
from workers.rollout.engines.wire import LoadRequest
from workers.settings import Settings
from workers.training.wire import BindRequest, CheckpointRequest
from workers.transfer import LocalTier, StateError
from workers.transfer.base import Source
from workers.transfer.objects import ObjectStore
from workers.transfer.peer import Peer
from workers.transfer.plane import Plane, digest_of
from workers.transfer.relay import Relayed

log = structlog.get_logger(__name__)

OWNER = "brought"
KEPT_S = 3600.0
MOST = {"full": 0.0, "auto": 0.75, "delta": 1.0}
"""`mechanisms.publication.content` -> the share of a content's bytes that a delta may have."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where a run's contents may lie, and how they are wanted."""

    sources: Sequence[Source]
    """Other nodes, those that trained the run last first; a node with a token asks the control plane, too."""
    content: str = "full"
    receivers: Mapping[str, Peer] = field(default_factory=dict)
    """Nodes whose engines take in the same, by their addresses."""


class Bringing:
    def __init__(
        self, settings: Settings, store: Callable[[Callable[[psycopg.Connection], Elsewhere]], Awaitable[Elsewhere]],
        address: str,
    ) -> None:  # fmt: skip
        """`address` is this node's own, which is not asked."""
        self._settings = settings
        self._store = store
        self._address = address
        self._local = LocalTier(settings.home, OWNER)
        self._objects = [ObjectStore(settings.object_store)] if settings.object_store else []

    async def __call__(self, run_id: int, request: msgspec.Struct, damaged: bool = False) -> bool:
        """Bring what a request names and this node lacks, or may hold damaged; say whether anything came."""
        named = [digest for digest in named_in(request) if digest]
        missing = named if damaged else await asyncio.to_thread(self._missing, named)
        if not missing:
            return False
        try:
            there = await self._store(partial(self._elsewhere, run_id=run_id))
        except psycopg.Error as error:
            log.warning("cannot ask for other nodes", error=str(error))
            return False
        sources: list[Source] = [*there.sources, *self._objects]
        if sources and isinstance(request, LoadRequest):
            sources[0] = self._relayed(sources[0], there.receivers)
        return bool(sources) and await asyncio.to_thread(self._bring, missing, sources, MOST[there.content])

    def _elsewhere(self, conn: psycopg.Connection, run_id: int) -> Elsewhere:
        there = elsewhere(self._settings, self._address, conn, run_id)
        return replace(there, content=publication_content(conn, run_id))

    def _relayed(self, origin: Source, receivers: Mapping[str, Peer]) -> Source:
        """Return an origin of weights that other nodes with engines of the run pass on, where there are such nodes."""
        others = {address: peer for address, peer in receivers.items() if address != self._address}
        return Relayed(origin, self._address, others) if others else origin

    def _missing(self, digests: Iterable[str]) -> list[str]:
        return [digest for digest in digests if not self._here(digest)]

    def _here(self, digest: str) -> bool:
        try:
            return self._local.locate(digest) is not None
        except StateError:
            return False

    def _bring(self, digests: Iterable[str], sources: list[Source], most: float) -> bool:
        came = False
        plane = Plane(self._local, sources=sources)
        for digest in digests:
            try:
                brought = plane.bring(digest, most)
                base = str(plane.meta(digest).get("base", ""))
                if base and not self._here(base):
                    plane.bring(base)
            except (StateError, OSError) as error:
                log.warning("not brought", digest=digest, error=str(error))
            else:
                came = True
                log.info("brought", digest=digest, bytes=brought.bytes)
        self._local.collect(set(digests), KEPT_S)
        return came


def elsewhere(settings: Settings, own: str, conn: psycopg.Connection, run_id: int = NO_RUN) -> Elsewhere:
    """Return where contents of a run, or of none, may lie; `own` is this node's address, which is not asked."""
    if settings.door is not None:
        return among_peers(peers_of(conn, settings.node, run_id), DoorPeer(settings.door), run_id != NO_RUN)
    key, addresses = settings.cluster_key, addresses_for(conn, run_id)
    receivers = [address for address in receivers_of(conn, run_id) if address not in addresses[:1]]
    sources = [Peer(address, key) for address in addresses if address != own]
    return Elsewhere(sources, receivers={address: Peer(address, key) for address in receivers})


def among_peers(peers: Sequence[NodePeer], door: DoorPeer, of_run: bool = True) -> Elsewhere:
    """Return where a node with a token looks: in its pool first if it holds what it wants, as far as can be known."""
    known = [(one, Peer(one.address, one.key)) for one in peers]
    near = [peer for one, peer in known if one.trained or not of_run]
    others = [peer for _, peer in known if peer not in near]
    receivers = {one.address: peer for one, peer in known if one.receives and peer not in near[:1]}
    return Elsewhere([*near, door, *others], receivers=receivers)


def named_in(request: msgspec.Struct) -> list[str]:
    """Return the digests that a child needs for a request."""
    match request:
        case LoadRequest(digest=digest):
            return [digest]
        case BindRequest() as bind:
            suspended = [digest_of(bind.resume)] if bind.resume else []
            redone = [digest for step in bind.redo for digest in (step.digest, *step.references)]
            return [bind.digest, bind.state, bind.base, *bind.references, *redone, *suspended]
        case CheckpointRequest() as checkpoint:
            return list(checkpoint.digests.values())
        case _:
            return []
