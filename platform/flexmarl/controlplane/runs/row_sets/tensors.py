"""The tensors of an export's file: of the right types and lengths, finite, and cut into rows."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load

from flexmarl.controlplane.runs.row_sets.refusing import SAFE, refused

UNKNOWN_LOGPROB = 1.0
"""Of tokens that others shared in words: no log-probability is above 0."""
TYPES: dict[str, type[np.generic]] = {
    "ids": np.int32, "mask": np.uint8, "logprobs": np.float32, "advantages": np.float32, "offsets": np.int64,
    "allowed": np.int32, "allowed_offsets": np.int64,
}  # fmt: skip
_BY_TOKEN = ("ids", "mask", "logprobs", "advantages")
_NEEDED = {
    "logprobs": "without the log-probabilities of the policy that sampled the tokens nothing can correct for it",
    "mask": "without it nobody knows which tokens were sampled",
}
_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RowTensors:
    """The part of each tensor that is of one row."""

    ids: _Array
    mask: _Array
    logprobs: _Array
    advantages: _Array
    allowed: _Array


def read(name: str, content: bytes, rows: int) -> list[RowTensors]:
    """Return the tensors of each row of a file. Raises ValidationProblem."""
    try:
        found = load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise refused(name, "not_safetensors", f"It is no file of safetensors: {str(error)[:200]}.", SAFE) from error
    _check_types(name, found)
    offsets, allowed = found["offsets"], found["allowed_offsets"]
    _check_offsets(name, "offsets", offsets, rows, len(found["ids"]), least=1)
    _check_offsets(name, "allowed_offsets", allowed, rows, len(found["allowed"]), least=0)
    if len({len(found[one]) for one in _BY_TOKEN}) > 1:
        lengths = ", ".join(f"{one} {len(found[one])}" for one in _BY_TOKEN)
        raise refused(name, "wrong_tensors", f"Its tensors by token have several lengths: {lengths}.")
    _check_values(name, found)
    ids, mask, logprobs, advantages = (found[one] for one in _BY_TOKEN)
    own = (slice(*pair) for pair in pairwise(offsets.tolist()))
    legal = (slice(*pair) for pair in pairwise(allowed.tolist()))
    return [
        RowTensors(ids[one], mask[one], logprobs[one], advantages[one], found["allowed"][other])
        for one, other in zip(own, legal, strict=True)
    ]


def _check_types(name: str, found: dict[str, _Array]) -> None:
    for one, kind in TYPES.items():
        legal = f"{np.dtype(kind).name} of one dimension"
        if one not in found:
            why = _NEEDED.get(one, f"it is {legal}")
            code = "missing_logprobs" if one == "logprobs" else "wrong_tensors"
            raise refused(name, code, f"It has no tensor {one}: {why}.")
        if found[one].dtype != kind or found[one].ndim != 1:
            is_now = f"{found[one].dtype.name} of {found[one].ndim} dimensions"
            raise refused(name, "wrong_tensors", f"{one} is {is_now}; legal is {legal}.")
    if unknown := sorted(found.keys() - TYPES.keys()):
        raise refused(name, "wrong_tensors", f"Nobody knows its tensor {unknown[0]}; legal are {', '.join(TYPES)}.")


def _check_offsets(name: str, which: str, offsets: _Array, rows: int, end: int, least: int) -> None:
    if len(offsets) != rows + 1:
        raise refused(name, "wrong_tensors", f"{which} has {len(offsets)} numbers; {rows} rows have {rows + 1}.")
    if offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < least).any():
        rule = f"it begins with 0, ends with {end} and rises by at least {least} with each row"
        raise refused(name, "wrong_tensors", f"{which} does not cut it into rows; {rule}.")


def _check_values(name: str, found: dict[str, _Array]) -> None:
    for one in ("logprobs", "advantages"):
        if not np.isfinite(found[one]).all():
            place = int(np.flatnonzero(~np.isfinite(found[one]))[0])
            raise refused(name, "not_finite", f"{one}[{place}] is {found[one][place]}; finite numbers are legal.")
    if (found["mask"] > 1).any():
        raise refused(name, "wrong_tensors", "mask has other numbers than 0 and 1.")
    if (found["ids"] < 0).any() or (found["allowed"] < 0).any():
        raise refused(name, "wrong_tensors", "It has ids below 0.")
    sampled, logprobs = found["mask"] == 1, found["logprobs"]
    if (logprobs[~sampled] != 0).any() or (found["advantages"][~sampled] != 0).any():
        raise refused(name, "wrong_tensors", "Tokens that were only read have log-probabilities or advantages.")
    if (above := (logprobs > 0) & (logprobs != UNKNOWN_LOGPROB)).any():
        place = int(np.flatnonzero(above)[0])
        rule = f"legal are numbers up to 0, and {UNKNOWN_LOGPROB:g} where nobody knows it"
        raise refused(name, "not_a_logprob", f"logprobs[{place}] is {logprobs[place]}; {rule}.")
