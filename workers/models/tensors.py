"""Files of weights in a model's folder: safetensors and nothing else, since pickles run code when they are read."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from workers.models.errors import UnsupportedModel
from workers.models.opening import ModelFolder, place_of

if TYPE_CHECKING:
    import torch

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Types of safetensors -> bytes of a value."""


def tensor_files(folder: ModelFolder) -> list[str]:
    """Return the names of a folder's files of weights, in order."""
    return [name for name in folder.names() if name.endswith(".safetensors")]


def tensor_shapes(folder: ModelFolder, name: str) -> dict[str, tuple[tuple[int, ...], str, int]]:
    """Read the head of a file of weights: name -> shape, type, bytes. Raises UnsupportedModel for one that is damaged
    or shorter than its head says."""
    found = {}
    with _tensors(folder, name) as file:
        for key in file.keys():  # noqa: SIM118 - a reader of safetensors is no mapping
            part = file.get_slice(key)
            shape, dtype = tuple(part.get_shape()), str(part.get_dtype())
            found[key] = shape, dtype, math.prod(shape) * _BYTES.get(dtype, 0)
    return found


def read_tensors(folder: ModelFolder, name: str, dtype: "torch.dtype | None" = None) -> "dict[str, torch.Tensor]":
    """Read a file of weights, in a precision or as they are. Raises UnsupportedModel for one that is damaged."""
    tensors = {}
    with _tensors(folder, name) as file:
        for key in file.keys():  # noqa: SIM118 - a reader of safetensors is no mapping
            found = file.get_tensor(key)
            tensors[key] = found if dtype is None else found.to(dtype)
            folder.in_time()
    return tensors


@contextmanager
def _tensors(folder: ModelFolder, name: str) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    with folder.file(name) as descriptor:
        try:
            with safe_open(place_of(descriptor), "pt") as file:
                yield file
        except (SafetensorError, OSError) as error:
            raise UnsupportedModel(f"{name} cannot be read: {error}") from error
