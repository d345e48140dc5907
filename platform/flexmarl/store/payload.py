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
    """Raw little-endian slices of a payload, ready for the wire."""

    prompt: bytes
    response: bytes
    logprobs: bytes
    allowed: bytes

    def prompt_ids(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.prompt, "<i4")

    def response_ids(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.response, "<i4")

    def response_logprobs(self) -> npt.NDArray[np.float32]:
        return np.frombuffer(self.logprobs, "<f4")

    def allowed_ids(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.allowed, "<i4")


def pack(prompt: Ints, response: Ints, logprobs: Floats, allowed: Ints = ()) -> bytes:
    """Join the arrays of a sample. Raises Refused unless every response token has a log-probability."""
    if len(response) != len(logprobs):
        raise Refused("payload_shape", f"{len(response)} response tokens, {len(logprobs)} log-probabilities")
    ids = [np.asarray(array, "<i4").tobytes() for array in (prompt, response, allowed)]
    return b"".join((ids[0], ids[1], np.asarray(logprobs, "<f4").tobytes(), ids[2]))


def unpack(payload: bytes, n_prompt: int, n_response: int, n_allowed: int) -> Arrays:
    """Cut a payload into its slices."""
    size = 4 * (n_prompt + 2 * n_response + n_allowed)
    if len(payload) != size:
        raise Refused("payload_shape", f"payload has {len(payload)} bytes, its row says {size}")
    a, b, c = 4 * n_prompt, 4 * (n_prompt + n_response), 4 * (n_prompt + 2 * n_response)
    return Arrays(payload[:a], payload[a:b], payload[b:c], payload[c:])
