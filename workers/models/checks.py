"""Whether weights are a model's: every name and shape, and only numbers. Before anything computes with them.

Invariant: what passes can be decoded. A weight that is missing or of another shape would break an engine at its first
request or, where a library keeps what it had, never be noticed; one that is no number makes replies that nobody may
train on.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.team import OwnSource
from workers.models.architecture import UnsupportedModel
from workers.models.weights import weight_shapes

if TYPE_CHECKING:
    import torch

EMBEDDING = "model.embed_tokens.weight"


class NonfiniteWeights(ValueError):
    """A weight is not a number, or infinite; the text names it."""


def check_weights(source: OwnSource, state: "Mapping[str, torch.Tensor]") -> int:
    """Return the vocabulary of weights that are whole.

    Raises UnsupportedModel for one that is missing, strange or of another shape, NonfiniteWeights for no number.
    """
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    words = found.get(EMBEDDING, (0,))[0]
    expected = weight_shapes(source, words)
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            wanted, given = (str(shapes.get(name, "absent")) for shapes in (expected, found))
            raise UnsupportedModel(f"these weights are not the model's: {name} is {given}, the model's is {wanted}")
    check_numbers(state)
    return words


def check_numbers(state: "Mapping[str, torch.Tensor]") -> None:
    """Raise NonfiniteWeights unless every value is a number."""
    for name, tensor in state.items():
        if not math.isfinite(_sum(tensor)):
            raise NonfiniteWeights(f"{name} contains values that are not numbers; engines cannot serve these weights")


def _sum(tensor: "torch.Tensor") -> float:
    """Return a sum that is a number exactly when each of the weights is.

    What is no number makes no sum of it one; a sum that overflows where all are numbers is made again in a type in
    which none does, which takes three times as long. The first sum is in the weights' own type: the library has quick
    code for that alone, thirty times as quick in bf16, and it adds in fp32 there.
    """
    import torch

    quick = float(tensor.sum())
    return quick if math.isfinite(quick) else float(tensor.sum(dtype=torch.float64))
