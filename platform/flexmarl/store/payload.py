"""The one payload value of a sample: its arrays joined, little-endian.

Layout: int32 prompt ids | int32 response ids | float32 log-probabilities | int32 allowed ids. The row's columns
n_prompt, n_response, n_allowed give the lengths; a payload of another size is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flexmarl.store.errors import Refused

Ints = Sequence[int] | npt.NDArray[np.int32]
Floats = Sequence[float] | npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Arrays:
    """A payload and the lengths that part it: arrays are views of it, slices for the wire are copies."""

    payload: bytes | memoryview
    n_prompt: int = 0
    n_response: int = 0
    n_allowed: int = 0

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
        return np.frombuffer(self.payload, "<i4", self.n_allowed, 4 * (self.n_prompt + 2 * self.n_response))


def pack(prompt: Ints, response: Ints, logprobs: Floats, allowed: Ints = ()) -> bytes:
    """Join the arrays of a sample. Raises Refused unless every response token has a log-probability."""
    if len(response) != len(logprobs):
        raise Refused("payload_shape", f"{len(response)} response tokens, {len(logprobs)} log-probabilities")
    ids = [np.ascontiguousarray(array, "<i4").data for array in (prompt, response, allowed)]
    return b"".join((ids[0], ids[1], np.ascontiguousarray(logprobs, "<f4").data, ids[2]))


def unpack(payload: bytes | memoryview, n_prompt: int, n_response: int, n_allowed: int) -> Arrays:
    """Part a payload. Raises Refused unless it has the size that its lengths make."""
    size = 4 * (n_prompt + 2 * n_response + n_allowed)
    if len(payload) != size:
        raise Refused("payload_shape", f"payload has {len(payload)} bytes, its row says {size}")
    return Arrays(payload, n_prompt, n_response, n_allowed)
