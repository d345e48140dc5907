"""Imported models as Hugging Face folders again, read piece by piece out of the state plane. Without torch.

Invariants: the small files are those that were imported, byte for byte; the weights are one file of safetensors with
every tensor as it was imported. Each chunk is checked when it is read; no more than one is in memory.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from workers.models.stored import FILE, KIND
from workers.transfer import LocalTier, StateMissing
from workers.transfer.contents import Description, TensorEntry

WEIGHTS = "model.safetensors"
_TYPES = {
    "float64": ("F64", 8), "float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1), "int64": ("I64", 8), "int32": ("I32", 4),
    "int16": ("I16", 2), "int8": ("I8", 1), "uint8": ("U8", 1), "bool": ("BOOL", 1),
}  # fmt: skip
"""Type of a tensor -> its name in safetensors, bytes of a value."""


class _Stretch(NamedTuple):
    """Bytes of a content."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file made of a head and of stretches of a content, in their order."""

    tier: LocalTier
    digest: str
    head: bytes
    stretches: tuple[_Stretch, ...]

    @property
    def size(self) -> int:
        return len(self.head) + sum(length for _, length in self.stretches)

    def read(self) -> Iterator[bytes]:
        """Yield its bytes. Raises StateMissing or CorruptState."""
        if self.head:
            yield self.head
        described, read = self.tier.description(self.digest), -1
        room = memoryview(bytearray(described.chunk_bytes))
        for start, length in self.stretches:
            here, end = start, start + length
            while here < end:
                number, offset = divmod(here, described.chunk_bytes)
                if number != read:
                    self.tier.read_chunk(self.digest, number, room[: described.size(number)])
                    read = number
                piece = bytes(room[offset : min(offset + end - here, described.size(number))])
                yield piece
                here += len(piece)


def files_of_model(tier: LocalTier, digest: str) -> dict[str, StoredFile]:
    """Return the files of an imported model: name -> file. Raises StateMissing or CorruptState."""
    described = tier.description(digest)
    if described.described.get("kind") != KIND:
        raise StateMissing(digest, "it is not an imported model")
    small = [entry for entry in described.tensors if entry.name.startswith(FILE)]
    files = {one.name.removeprefix(FILE): StoredFile(tier, digest, b"", (_stretch(one),)) for one in small}
    return {**files, WEIGHTS: _weights(tier, digest, described)}


def _weights(tier: LocalTier, digest: str, described: Description) -> StoredFile:
    """Return the weights as safetensors: length of the head, the head as JSON, the tensors one behind the other."""
    entries = [entry for entry in described.tensors if not entry.name.startswith(FILE)]
    told: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in entries:
        length = _stretch(entry).length
        told[entry.name] = {
            "dtype": _TYPES[entry.dtype][0], "shape": entry.shape, "data_offsets": [end, end + length],
        }  # fmt: skip
        end += length
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return StoredFile(tier, digest, len(text).to_bytes(8, "little") + text, tuple(map(_stretch, entries)))


def _stretch(entry: TensorEntry) -> _Stretch:
    return _Stretch(entry.start, math.prod(entry.shape) * _TYPES[entry.dtype][1])
