"""What turns one chunk into another, exactly: which of its 16-bit words are others, and what they are. Pure.

Invariants: applied to the old bytes a patch gives the new ones bit for bit, whatever they mean; nothing is rounded and
no type is assumed. A step of the optimizer moves few words of bf16 weights, and of fp32 weights nearly all lower halves
and few upper ones, so words at even and at odd places are told apart, each as briefly as it goes: the distances between
the words that changed, a bit per word, or all words. Nobody has to trust a patch: who applies one compares the result
with the chunk's name.
"""

from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint16]

_PLANES = 2
_WORD_BYTES = 2
_FAR = 255
"""In a list of distances: so many words on, and no change there."""


class PatchError(ValueError):
    """A patch does not fit what it is to be applied to."""


class _Plane(msgspec.Struct, frozen=True, array_like=True):
    """What changed among the words of every second place."""

    told_by: Literal["distances", "bits", "all"]
    where: bytes
    words: bytes
    """The new words, in order."""


class _Patch(msgspec.Struct, frozen=True, array_like=True):
    size: int
    planes: tuple[_Plane, ...]
    tail: bytes
    """The bytes behind the last pair of words."""


def patch_of(old: memoryview, new: memoryview) -> bytes:
    """Return what makes the new bytes of the old ones. Raises PatchError when they differ in length."""
    if len(old) != len(new):
        raise PatchError(f"{len(old)} bytes do not become {len(new)}")
    before, after = _words(old), _words(new)
    planes = tuple(_told(before[at::_PLANES], after[at::_PLANES]) for at in range(_PLANES))
    return msgspec.msgpack.encode(_Patch(len(new), planes, bytes(new[after.nbytes :])))


def apply(patch: bytes | memoryview, room: memoryview) -> None:
    """Turn old bytes into new ones in their place. Raises PatchError; then the room holds anything."""
    try:
        told = msgspec.msgpack.decode(patch, type=_Patch)
        words = _words(room)
        if told.size != len(room) or len(told.planes) != _PLANES or len(told.tail) != len(room) - words.nbytes:
            raise PatchError(f"a patch of {told.size} bytes does not fit {len(room)}")
        for at, plane in enumerate(told.planes):
            _change(words[at::_PLANES], plane)
        room[words.nbytes :] = told.tail
    except (msgspec.DecodeError, IndexError, ValueError) as error:
        raise PatchError(str(error)) from error


def _words(memory: memoryview) -> "Words":
    pairs = len(memory) // (_PLANES * _WORD_BYTES)
    return np.frombuffer(memory, dtype=np.uint16, count=pairs * _PLANES)


def _told(before: "Words", after: "Words") -> _Plane:
    changed = before != after
    count, words = int(np.count_nonzero(changed)), len(after)
    if _WORD_BYTES * count + min(words // 8, count) >= _WORD_BYTES * words:
        return _Plane("all", b"", after.tobytes())
    if count > words // 8:
        return _Plane("bits", np.packbits(changed).tobytes(), after[changed].tobytes())
    places = np.flatnonzero(changed)
    return _Plane("distances", _distances(places), after[places].tobytes())


def _change(words: "Words", plane: _Plane) -> None:
    new = np.frombuffer(plane.words, dtype=np.uint16)
    if plane.told_by == "all":
        words[:] = new
    elif plane.told_by == "bits":
        words[np.unpackbits(np.frombuffer(plane.where, dtype=np.uint8), count=len(words)).view(bool)] = new
    else:
        words[_places(plane.where)] = new


def _distances(places: "NDArray[np.int64]") -> bytes:
    """Return a byte per place: the words that lie between it and the one before; each `_FAR` of them take one more."""
    between = np.diff(places, prepend=-1) - 1
    more = between // _FAR
    told = np.full(len(places) + int(more.sum()), _FAR, dtype=np.uint8)
    told[np.cumsum(more + 1) - 1] = between % _FAR
    return told.tobytes()


def _places(distances: bytes) -> "NDArray[np.int64]":
    told = np.frombuffer(distances, dtype=np.uint8)
    ends = told != _FAR
    places: NDArray[np.int64] = (np.cumsum(told + ends, dtype=np.int64) - 1)[ends]
    return places
