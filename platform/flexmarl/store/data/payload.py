"""The one payload value of a sample: its arrays joined, little-endian.

Layout: int32 prompt ids | int32 response ids | float32 log-probabilities | int32 allowed ids. The row's columns
n_prompt, n_response, n_allowed give the lengths; a payload of another size is refused. Allowed ids that follow each
other, as those of a game's words do, are stored as the first one alone: n_allowed is then their number below zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated

import numpy as np
import numpy.typing as npt

from flexmarl.store.errors import Refused
from flexmarl.store.wire_lists import ReadAsList

Ints = Annotated[Sequence[int] | npt.NDArray[np.int32], ReadAsList()]
Floats = Annotated[Sequence[float] | npt.NDArray[np.float32], ReadAsList()]


@dataclass(frozen=True, slots=True)
class Arrays:
    """A payload and the lengths that part it: arrays are views of it, slices for the wire are copies."""

    payload: bytes | memoryview
    n_prompt: int = 0
    n_response: int = 0
    n_allowed: int = 0
    """Below zero: so many ids that follow each other, of which the payload holds the first."""

    @property
    def prompt(self) -> bytes:
        return self.prompt_ids().tobytes()

    @property
    def response(self) -> bytes:
        return self.response_ids().tobytes()

    @property
    def logprobs(self) -> bytes:
        return self.response_logprobs().tobytes()

    @property
    def allowed(self) -> bytes:
        return self.allowed_ids().tobytes()

    def prompt_ids(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.payload, "<i4", self.n_prompt)

    def response_ids(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.payload, "<i4", self.n_response, 4 * self.n_prompt)

    def response_logprobs(self) -> npt.NDArray[np.float32]:
        return np.frombuffer(self.payload, "<f4", self.n_response, 4 * (self.n_prompt + self.n_response))

    def allowed_ids(self) -> npt.NDArray[np.int32]:
        stored = 1 if self.n_allowed < 0 else self.n_allowed
        found = np.frombuffer(self.payload, "<i4", stored, 4 * (self.n_prompt + 2 * self.n_response))
        return found if self.n_allowed >= 0 else found + np.arange(-self.n_allowed, dtype="<i4")


def pack(prompt: Ints, response: Ints, logprobs: Floats, allowed: Ints = ()) -> bytes:
    """Join the arrays of a sample. Raises Refused unless every response token has a log-probability."""
    if len(response) != len(logprobs):
        raise Refused("payload_shape", f"{len(response)} response tokens, {len(logprobs)} log-probabilities")
    _, stored = _compact(tuple(allowed))
    ids = [np.ascontiguousarray(array, "<i4").data for array in (prompt, response, stored)]
    return b"".join((ids[0], ids[1], np.ascontiguousarray(logprobs, "<f4").data, ids[2]))


def unpack(payload: bytes | memoryview, n_prompt: int, n_response: int, n_allowed: int) -> Arrays:
    """Part a payload. Raises Refused unless it has the size that its lengths make."""
    size = size_of(n_prompt, n_response, n_allowed)
    if len(payload) != size:
        raise Refused("payload_shape", f"payload has {len(payload)} bytes, its row says {size}")
    return Arrays(payload, n_prompt, n_response, n_allowed)


def allowed_length(allowed: Ints) -> int:
    """Return what a row keeps as n_allowed of its allowed ids."""
    return _compact(tuple(allowed))[0]


def size_of(n_prompt: int, n_response: int, n_allowed: int) -> int:
    """Return the bytes of a payload of these lengths. `SIZE` says the same in SQL."""
    return 4 * (n_prompt + 2 * n_response + (1 if n_allowed < 0 else n_allowed))


SIZE = "4::bigint * ({0}.n_prompt + 2 * {0}.n_response + CASE WHEN {0}.n_allowed < 0 THEN 1 ELSE {0}.n_allowed END)"


@lru_cache(maxsize=4096)
def _compact(allowed: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Return n_allowed and the ids that are stored."""
    if len(allowed) > 1 and all(b - a == 1 for a, b in pairwise(allowed)):
        return -len(allowed), allowed[:1]
    return len(allowed), allowed
