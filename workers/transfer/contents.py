"""How a content is named: tensors in the order of their names, cut into chunks, listed by one manifest. Pure.

Invariants: the digest of a content is the BLAKE3 of its manifest, and the manifest lists the BLAKE3 of every chunk, so
a digest covers each byte, and each chunk can be checked alone, in any order, by several threads. Equal names, types,
shapes, values and description give equal manifests. Nothing is copied here: chunks are views of the tensors' memory,
which therefore must not change until they are written.
"""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from workers.transfer.base import CorruptState, Meta, Tensors
from workers.transfer.parallel import in_threads

if TYPE_CHECKING:
    import torch
    import xxhash

CHUNK_BYTES = 8 * 2**20
"""Large enough that a file and its flush cost little beside its bytes; small enough to be sent again after a break."""
ALIGNMENT = 64
BYTES = "uint8"
_LAYOUT = 3

Pieces = list[memoryview]

xxh3_128: "type[xxhash.xxh3_128] | None" = None
with contextlib.suppress(ImportError):  # an engine under another interpreter may lack it, and checks by name
    from xxhash import xxh3_128


class TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """Where a tensor lies in the payload."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _dtype(self.dtype).itemsize


class Description(msgspec.Struct, frozen=True):
    """A manifest: everything about a content but its bytes."""

    layout: int
    bytes: int
    chunk_bytes: int
    meta: str
    tensors: tuple[TensorEntry, ...]
    chunks: tuple[str, ...]
    """Checksum of each chunk, in order: BLAKE3 wherever it is also the chunk's name."""
    sums: tuple[str, ...] = ()
    """XXH3 of each chunk that has a name: tells whoever reads a chunk that once had its name whether it still has."""

    def size(self, number: int) -> int:
        """Return the length of a chunk: the last one may be short."""
        return min(self.chunk_bytes, self.bytes - number * self.chunk_bytes)

    def sum(self, number: int) -> str:
        """Return a chunk's quick checksum, empty when none was noted."""
        return self.sums[number] if self.sums else ""

    @property
    def described(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.meta)
        return found


@dataclass(frozen=True, slots=True)
class Encoded:
    """A content with its name, not yet stored."""

    digest: str
    manifest: bytes
    description: Description
    pieces: tuple[Pieces, ...]
    """Of each chunk."""


def encode(tensors: Tensors, meta: Meta | None = None, chunk_bytes: int = CHUNK_BYTES) -> Encoded:
    """Name a content."""
    return named(*describe(tensors, meta or {}, chunk_bytes))


def encode_files(files: Mapping[str, memoryview], meta: Meta) -> Encoded:
    """Name a content of files, each as the bytes that it has."""
    entries, views, end = [], [], 0
    for name, view in sorted(files.items()):
        start = -(-end // ALIGNMENT) * ALIGNMENT if view else 0
        entries.append(TensorEntry(name, BYTES, (len(view),), start))
        views.append(view)
        end = max(end, start + len(view))
    description = Description(_LAYOUT, end, CHUNK_BYTES, _written(meta), tuple(entries), ())
    return named(description, cut(entries, views, end, CHUNK_BYTES))


def named(unnamed: Description, pieces: Sequence[Pieces]) -> Encoded:
    """Name the chunks of a content, and so the content."""
    names = in_threads(lambda chunk: (name_of(chunk), sum_of(chunk)), pieces)
    sums = tuple(each for _, each in names if each)
    description = msgspec.structs.replace(unnamed, chunks=tuple(name for name, _ in names), sums=sums)
    manifest = msgspec.json.encode(description)
    return Encoded(blake3(manifest).hexdigest(), manifest, description, tuple(pieces))


def describe(tensors: Tensors, meta: Meta, chunk_bytes: int) -> tuple[Description, list[Pieces]]:
    """Return a manifest that lists no chunks yet, and the memory of each."""
    entries, views, size = arrange(tensors)
    description = Description(_LAYOUT, size, chunk_bytes, _written(meta), tuple(entries), ())
    return description, cut(entries, views, size, chunk_bytes)


def _written(meta: Meta) -> str:
    return json.dumps(meta, sort_keys=True, separators=(",", ":"))


def decode(digest: str, manifest: bytes) -> Description:
    """Read a manifest. Raises CorruptState when it is not the one that the digest names."""
    if blake3(manifest).hexdigest() != digest:
        raise CorruptState(digest, "the manifest is not the one put")
    try:
        return msgspec.json.decode(manifest, type=Description)
    except msgspec.DecodeError as error:
        raise CorruptState(digest, f"unreadable manifest: {error}") from None


def name_of(pieces: Sequence[memoryview]) -> str:
    """Return the name of a chunk."""
    hasher = blake3()
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()


def sum_of(pieces: Sequence[memoryview]) -> str:
    """Return a chunk's quick checksum: three times faster than its name, and no proof against anybody's intent."""
    if xxh3_128 is None:
        return ""
    hasher = xxh3_128()
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()


def arrange(tensors: Tensors) -> tuple[list[TensorEntry], list[memoryview], int]:
    """Return where each tensor lies in the payload, its memory, and the payload's length."""
    entries, views, end = [], [], 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        start = -(-end // ALIGNMENT) * ALIGNMENT if tensor.numel() else 0
        entries.append(TensorEntry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), start))
        views.append(memory_of(tensor))
        end = max(end, start + len(views[-1]))
    return entries, views, end


def memory_of(tensor: "torch.Tensor") -> memoryview:
    """Return a contiguous tensor's bytes, without a copy."""
    import torch

    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def make_room(description: Description) -> tuple["dict[str, torch.Tensor]", list[Pieces]]:
    """Return fresh tensors of a content, and their memory cut into its chunks, to be filled."""
    import torch

    flat = torch.empty(description.bytes, dtype=torch.uint8)
    whole, step = flat.numpy().data, description.chunk_bytes
    return _tensors(description, flat), [[whole[start : start + step]] for start in range(0, description.bytes, step)]


def tensors_over(description: Description, memory: memoryview) -> "dict[str, torch.Tensor]":
    """Return a content's tensors in memory that holds its chunks, one behind the other."""
    import torch

    if not description.bytes:
        return make_room(description)[0]
    return _tensors(description, torch.frombuffer(memory, dtype=torch.uint8, count=description.bytes))


def _tensors(description: Description, flat: "torch.Tensor") -> "dict[str, torch.Tensor]":
    return {
        entry.name: flat[entry.start : entry.start + entry.bytes].view(_dtype(entry.dtype)).view(entry.shape)
        for entry in description.tensors
    }


def room_in(description: Description, into: "Mapping[str, torch.Tensor]", digest: str) -> list[Pieces]:
    """Return the memory of tensors that are there already, cut into a content's chunks, to be filled.

    Raises CorruptState unless the tensors have the content's names, types and shapes, each in one stretch of memory.
    """
    entries, views, size = arrange(into)
    if tuple(entries) != description.tensors or any(
        not tensor.is_contiguous() or tensor.device.type != "cpu" for tensor in into.values()
    ):
        raise CorruptState(digest, "the tensors to fill differ from the content in names, types, shapes or layout")
    return cut(entries, views, size, description.chunk_bytes)


def cut(entries: Sequence[TensorEntry], views: Sequence[memoryview], size: int, chunk_bytes: int) -> list[Pieces]:
    """Return the memory of each chunk. Between two tensors lie zeros up to the next aligned place."""
    chunks: list[Pieces] = [[] for _ in range(-(-size // chunk_bytes))]
    end = 0
    for entry, view in zip(entries, views, strict=True):
        if view:
            _lay(chunks, end, memoryview(bytearray(entry.start - end)), chunk_bytes)
            _lay(chunks, entry.start, view, chunk_bytes)
            end = entry.start + len(view)
    return chunks


def _lay(chunks: list[Pieces], start: int, view: memoryview, chunk_bytes: int) -> None:
    while view:
        room = chunk_bytes - start % chunk_bytes
        chunks[start // chunk_bytes].append(view[:room])
        view, start = view[room:], start + room


def _dtype(name: str) -> "torch.dtype":
    import torch

    found: torch.dtype = getattr(torch, name)
    return found
