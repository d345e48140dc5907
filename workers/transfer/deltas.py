"""Exact deltas between contents: what a host that holds one version need not receive of the next.

Invariants. A delta is a content like any other, with a manifest, chunks and checksums: patches of chunks of one content
over those of another, its base, which it names by digest. It is only ever a shorter way to a chunk: whoever applies one
holds the exact base, checks what came out by the chunk's name, and takes the chunk itself when either is not so. A
content therefore lies here whole and bit-equal, or not at all, with or without a delta. Deltas are made when somebody
asks for one, once for all who ask, and never when a look at a few places says that the whole is better: a version that
nobody fetches costs no time.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from workers.transfer.base import Source, StateError
from workers.transfer.contents import Description, Encoded, decode, encode, memory_of
from workers.transfer.local import Fill, LocalTier, Shortcut
from workers.transfer.parallel import Rooms, in_threads
from workers.transfer.patches import PatchError, apply, patch_of

if TYPE_CHECKING:
    import torch

log = structlog.get_logger(__name__)

LEAST_BYTES = 4 * 2**20
"""Less than that is sent sooner than a delta is made."""
MOST_BYTES = 2 * 2**30
"""A delta is made in memory."""
BASES_AT_MOST = 8
"""Contents that a receiver offers as bases."""
_LOOKS = 8
_LOOK_BYTES = 128 * 2**10
_KEPT = 4
"""Deltas that are kept for who asks next."""
_KIND, _BASE, _MAKES = "kind", "over", "makes"
_DELTA = "delta"


def delta_between(tier: LocalTier, base: str, digest: str, most: float) -> Encoded | None:
    """Return what makes a content of another that lies here too; None unless it has less than `most` of its bytes.

    Raises StateMissing or CorruptState.
    """
    old, new = tier.description(base), tier.description(digest)
    if not _alike(old, new):
        return None
    rooms = Rooms(2 * new.chunk_bytes)

    def patch(number: int) -> bytes:
        size, room = new.size(number), rooms.own()
        before, after = room[:size], room[size : 2 * size]
        tier.read_chunk(base, number, before)
        tier.read_chunk(digest, number, after)
        return patch_of(before, after)

    changed = _changed(old, new)
    patches = zip(changed, in_threads(patch, changed), strict=True)
    short = {str(number): _tensor(each) for number, each in patches if len(each) < most * new.size(number)}
    made = encode(short, {_KIND: _DELTA, _BASE: base, _MAKES: digest})
    left = sum(new.size(number) for number in changed if str(number) not in short)
    return made if made.description.bytes + left < most * _bytes_of(new, changed) else None


def guess(tier: LocalTier, base: str, digest: str) -> float:
    """Return about how many bytes a delta would have for each byte of the chunks that changed; 1 at most."""
    old, new = tier.description(base), tier.description(digest)
    changed = _changed(old, new) if _alike(old, new) else []
    looks = changed[:: max(1, len(changed) // _LOOKS)]
    pairs = [(_look(tier, old, number), _look(tier, new, number)) for number in looks]
    told = sum(len(patch_of(before, after)) for before, after in pairs if len(before) == len(after))
    seen = sum(len(after) for _, after in pairs)
    return min(1.0, told / seen) if seen else 1.0


class Deltas:
    """The deltas that a host has made of what lies there, for others; their claims are this object's alone.

    It is asked by one at a time: whoever serves it sees to that.
    """

    def __init__(self, tier: LocalTier) -> None:
        self._tier = tier
        self._made: dict[tuple[str, str], str] = {}
        """Base and content -> the delta between them, the last one last."""
        for earlier in tier.claims():  # another life's
            tier.evict(earlier)

    def get(self, digest: str, bases: Sequence[str], most: float) -> str | None:
        """Return a delta over one of the bases; None when the whole is better, or none of them lies here too."""
        known = [made for base in bases if (made := self._made.get((base, digest)))]
        if known:
            return known[0]
        base, share = self._best(digest, bases)
        if not base or share > most or share * self._tier.description(digest).bytes > MOST_BYTES:
            return None
        encoded = delta_between(self._tier, base, digest, most)
        if encoded is None:
            return None
        self._tier.store(encoded)
        self._made[base, digest] = encoded.digest
        self._let_go()
        log.info("delta made", digest=digest, base=base, bytes=encoded.description.bytes)
        return encoded.digest

    def _best(self, digest: str, bases: Sequence[str]) -> tuple[str, float]:
        found = ("", 1.0)
        for base in bases[:BASES_AT_MOST]:
            with contextlib.suppress(StateError, OSError):  # not here, or being let go
                share = guess(self._tier, base, digest)
                found = (base, share) if share < found[1] else found
        return found

    def _let_go(self) -> None:
        while len(self._made) > _KEPT:
            self._tier.evict(self._made.pop(next(iter(self._made))))


@contextmanager
def shortcut_by(tier: LocalTier, source: Source, most: float) -> Iterator[Shortcut | None]:
    """Give the way to bring a content by a delta of at most `most` of its bytes; none is left when it has been gone."""
    taken: list[str] = []

    def shortcut(digest: str, description: Description) -> Fill | None:
        missing = tier.missing_bytes(description)
        bases = _bases(tier, description) if missing >= LEAST_BYTES else []
        with contextlib.suppress(StateError, OSError):  # a delta that does not come is no reason not to take the whole
            delta = source.delta(digest, bases, most) if bases else None
            if delta is not None and decode(delta, source.manifest(delta)).bytes < missing:
                taken.append(delta)
                tier.bring(delta, source)
                return filling(tier, delta, digest)
        return None

    yield shortcut if most > 0 else None
    for delta in taken:  # only where all went well: what broke off goes on with it
        tier.evict(delta)


def filling(tier: LocalTier, delta: str, digest: str) -> Fill | None:
    """Return what makes chunks of those of a delta's base; None when the base is not here, or it makes something else.

    Raises StateMissing or CorruptState for the delta itself.
    """
    about = tier.description(delta).described
    base = str(about.get(_BASE))
    if about.get(_KIND) != _DELTA or about.get(_MAKES) != digest or tier.locate(base) is None:
        return None
    patches = tier.get(delta)

    def fill(number: int, room: memoryview) -> bool:
        patch = patches.get(str(number))
        try:
            if patch is None:
                return False
            tier.read_chunk(base, number, room)
            apply(memory_of(patch), room)
        except (StateError, PatchError):
            return False
        return True

    return fill


def _bases(tier: LocalTier, description: Description) -> list[str]:
    """Return contents that lie here and could be what another is made of, the last one first."""
    found: list[str] = []
    for digest in tier.newest():
        with contextlib.suppress(StateError, OSError):
            if _alike(tier.description(digest), description):
                found.append(digest)
        if len(found) == BASES_AT_MOST:
            break
    return found


def _alike(old: Description, new: Description) -> bool:
    """Tell whether equal places of two contents mean the same."""
    return (old.tensors, old.bytes, old.chunk_bytes) == (new.tensors, new.bytes, new.chunk_bytes)


def _changed(old: Description, new: Description) -> list[int]:
    return [number for number, name in enumerate(new.chunks) if old.chunks[number] != name]


def _bytes_of(description: Description, numbers: Sequence[int]) -> int:
    return sum(description.size(number) for number in numbers)


def _look(tier: LocalTier, description: Description, number: int) -> memoryview:
    """Read some of a chunk, from its middle; unchecked, since nothing but a guess is made of it."""
    start = description.size(number) // 2 // 64 * 64
    with open(tier.chunk(description.chunks[number]), "rb", buffering=0) as file:
        return memoryview(os.pread(file.fileno(), min(_LOOK_BYTES, description.size(number) - start), start))


def _tensor(patch: bytes) -> "torch.Tensor":
    import torch

    return torch.frombuffer(bytearray(patch), dtype=torch.uint8)
