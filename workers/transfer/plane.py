"""The state plane as its users see it: they say what, the plane knows where.

Two kinds of things lie in it. *Contents* go by digest and are durable when `put` returns: on the local disk, then in
every store that keeps copies. `get` looks on the local disk first and brings a content from the first source that gives
it whole; a damaged one here is brought anew. *Suspended states* go by the ticket that `suspend` returned, live as long
as the process that suspended them, and take the fastest place with room: the process itself (its memory is handed over,
nothing is copied), host memory, the disk. Whoever suspends says who may resume: the same process, any of the host, any
of the cluster; the last needs the disk, from which nodes bring.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from workers.transfer.base import (
    ContentManifest,
    CorruptState,
    Meta,
    Source,
    StateError,
    StateFull,
    StateMissing,
    Tensors,
)
from workers.transfer.contents import Encoded, decode, encode
from workers.transfer.deltas import shortcut_by
from workers.transfer.local import LocalTier
from workers.transfer.parallel import copy

if TYPE_CHECKING:
    import torch

    State = tuple[dict[str, torch.Tensor], dict[str, object]]


class Shelter(Protocol):
    """A place for suspended states."""

    name: str
    copies: bool
    reach: str
    """Who can resume from it: `process`, `host` or `cluster`."""

    def put(self, tensors: Tensors, meta: Meta) -> tuple[str, int]:
        """Take a state in; return its name and length. Raises StateFull."""

    def get(self, name: str, into: "Mapping[str, torch.Tensor] | None" = None) -> "State":
        """Return a state. Raises StateMissing or CorruptState."""

    def marks(self, name: str) -> dict[str, Any]:
        """Return a state's description. Raises StateMissing or CorruptState."""

    def drop(self, name: str) -> None:
        """Let a state go, if it is there."""


REACHES = ("process", "host", "cluster")


class Store(Protocol):
    """A place that keeps copies of contents."""

    def store(self, encoded: Encoded) -> ContentManifest:
        """Put a content. Raises StateError."""


class Ticket(msgspec.Struct, frozen=True):
    """Where a suspended state lies; only the plane reads it."""

    place: str
    name: str
    bytes: int
    copied: bool = True
    """Whether the memory that was suspended may be used for something else; the plane has its own."""


class Plane:
    def __init__(
        self,
        local: LocalTier,
        shelters: Sequence[Shelter] = (),
        sources: Sequence[Source] = (),
        copies: Sequence[Store] = (),
    ) -> None:
        """Shelters and sources in the order in which they are tried."""
        self._local = local
        self._shelters = {shelter.name: shelter for shelter in shelters}
        self._sources = sources
        self._copies = copies

    def put(self, tensors: Tensors, meta: Meta | None = None) -> ContentManifest:
        encoded = encode(tensors, meta)
        manifest = self._local.store(encoded)
        for store in self._copies:
            store.store(encoded)
        return manifest

    def get(self, digest: str, device: str = "cpu") -> "dict[str, torch.Tensor]":
        try:
            return self._local.get(digest, device)
        except StateError:
            self.bring(digest)
        return self._local.get(digest, device)

    def meta(self, digest: str) -> dict[str, object]:
        try:
            return self._local.meta(digest)
        except StateError:
            self.bring(digest)
        return self._local.meta(digest)

    def bring(self, digest: str, most: float = 0.0) -> ContentManifest:
        """Make a content lie on the local disk, whole or by a delta of at most that share of its bytes.

        Raises what the last source said when none gives it whole.
        """
        failed: StateError = StateMissing(digest, "not on the local disk, and there is nowhere else to look")
        for source in self._sources:
            try:
                with shortcut_by(self._local, source, most) as shortcut:
                    return self._local.bring(digest, source, shortcut)
            except StateFull:
                raise  # no other source makes room
            except StateError as error:
                failed = error
        raise failed

    def locate(self, digest: str) -> ContentManifest | None:
        """Return where a content lies on the local disk, or that a source has it."""
        try:
            found = self._local.locate(digest)
        except CorruptState:
            found = None
        return found or next((there for source in self._sources if (there := _there(source, digest))), None)

    def suspend(self, tensors: Tensors, meta: Meta | None = None, reach: str = "process") -> Ticket:
        """Keep a state that its owner gives up. Unless the ticket says that it was copied, its tensors belong to the
        plane from now on. Raises StateFull."""
        full = StateFull("", "there is no storage for suspended states")
        for shelter in self._shelters.values():
            if REACHES.index(shelter.reach) < REACHES.index(reach):
                continue
            try:
                return Ticket(shelter.name, *shelter.put(tensors, meta or {}), shelter.copies)
            except StateFull as error:
                full = error
        raise full

    def resume(self, ticket: Ticket, into: "Mapping[str, torch.Tensor] | None" = None) -> "State":
        """Return a suspended state with its description, and keep it until `release`.

        With `into`, its bits are copied into tensors that are there. Raises StateMissing or CorruptState.
        """
        return self._shelter(ticket).get(ticket.name, into)

    def marks(self, ticket: Ticket) -> dict[str, Any]:
        """Return what was told with a suspended state. Raises StateMissing or CorruptState."""
        return self._shelter(ticket).marks(ticket.name)

    def release(self, ticket: Ticket) -> None:
        """Let a suspended state go."""
        self._shelter(ticket).drop(ticket.name)

    def _shelter(self, ticket: Ticket) -> Shelter:
        if ticket.place not in self._shelters:
            raise StateMissing(ticket.name, f"{ticket.place} is not a location of this host")
        return self._shelters[ticket.place]


class OwnMemory:
    """Suspended states in the memory of the process that suspended them: references, nothing is copied."""

    name = "process"
    copies = False
    reach = "process"

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: dict[str, tuple[Tensors, Meta, int]] = {}
        self._count = 0

    def put(self, tensors: Tensors, meta: Meta) -> tuple[str, int]:
        own = {name: tensor.detach().cpu() for name, tensor in tensors.items()}  # of a GPU's memory a copy, else itself
        size = sum(tensor.numel() * tensor.element_size() for tensor in own.values())
        if size + sum(held for _, _, held in self._held.values()) > self._limit:
            raise StateFull("", f"{size} bytes are more than is left of the {self._limit} of the process")
        self._count += 1
        name = str(self._count)
        self._held[name] = (own, dict(meta), size)
        return name, size

    def get(self, name: str, into: "Mapping[str, torch.Tensor] | None" = None) -> "State":
        if name not in self._held:
            raise StateMissing(name, "the process does not hold it")
        tensors, meta, _ = self._held[name]
        if into is None:
            return dict(tensors), dict(meta)
        if all(
            tensor.is_contiguous() and tensor.device.type == "cpu" for tensor in (*into.values(), *tensors.values())
        ):
            copy([(tensor.view(-1), tensors[key].view(-1)) for key, tensor in into.items()])
        else:
            for key, tensor in into.items():
                tensor.copy_(tensors[key])
        return dict(into), dict(meta)

    def marks(self, name: str) -> dict[str, Any]:
        if name not in self._held:
            raise StateMissing(name, "the process does not hold it")
        return dict(self._held[name][1])

    def drop(self, name: str) -> None:
        self._held.pop(name, None)


class DiskShelter:
    """Suspended states as contents of the local disk, claimed by whoever suspends, who claims nothing else there.

    What an earlier life of that owner left is let go at once. A state's name holds its owner, so that whoever takes it
    up on the same host gives back the owner's claim.
    """

    name = "disk"
    copies = True
    reach = "cluster"

    def __init__(self, home: str | Path, owner: str) -> None:
        self._home = home
        self._owner = owner
        self._local = LocalTier(home, owner)
        self._local.collect((), 0.0)

    def put(self, tensors: Tensors, meta: Meta) -> tuple[str, int]:
        manifest = self._local.put(tensors, meta)
        return f"{self._owner}/{manifest.digest}", manifest.bytes

    def get(self, name: str, into: "Mapping[str, torch.Tensor] | None" = None) -> "State":
        digest = digest_in(name)
        return self._local.get(digest, into=into), self._local.meta(digest)

    def marks(self, name: str) -> dict[str, Any]:
        return self._local.meta(digest_in(name))

    def drop(self, name: str) -> None:
        LocalTier(self._home, name.partition("/")[0]).evict(digest_in(name))


def digest_in(name: str) -> str:
    """Return the digest in the name of a state on disk."""
    return name.partition("/")[2]


def digest_of(told: str) -> str:
    """Return the digest by which a node can bring a suspended state, empty where it lies in memory."""
    ticket = msgspec.json.decode(told, type=Ticket)
    return digest_in(ticket.name) if ticket.place == DiskShelter.name else ""


def _plain(tensor: "torch.Tensor") -> bool:
    return tensor.is_contiguous() and tensor.device.type == "cpu"


def _there(source: Source, digest: str) -> ContentManifest | None:
    try:
        return ContentManifest(digest, decode(digest, source.manifest(digest)).bytes, source.name)
    except StateError:
        return None
