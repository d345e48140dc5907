"""A model of the transformers library over weights that FSDP2 holds, one module of it for each layer.

The library's classes compute, as on a single device: their parameters are the tensors that FSDP2 fills, and each layer
is called inside the module that holds its weights.

Invariants: all ranks try the model together, on the first weights that they are given, and refuse it together; before
that it computes nothing.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from workers.models.errors import UnsupportedModel
from workers.models.families import LibraryModel
from workers.training.families.decoder import LibraryDecoder
from workers.training.families.skeleton import stacks_of, words_of
from workers.training.gangs.layout import Shapes, StackedWeights
from workers.training.packing import PackedTokens
from workers.training.parameters import FlatParameters

if TYPE_CHECKING:
    import torch
    from torch import nn


def library_leaves(shapes: Shapes, model: LibraryModel) -> list[StackedWeights]:
    """Return the parameters of a model, in the library's own shapes and in no order."""
    stacks = stacks_of(model, words_of({name: tuple(shape) for name, shape in shapes.items()}))
    return [StackedWeights(stack.weights, stack.shape) for stack in stacks]


class ShardedLibraryDecoder(LibraryDecoder):
    """Computes each layer inside the module that holds its weights, and all of it inside the root."""

    def __init__(
        self,
        parameters: FlatParameters,
        model: LibraryModel,
        root: "nn.Module",
        layers: "Mapping[str, nn.Module]",
        recompute: bool,
    ) -> None:
        """`layers`: number of a layer -> the module that holds its weights."""
        self._root = root
        self._far = 0.0
        super().__init__(parameters, model, recompute=recompute)
        for number, path in layer_paths(parameters, model, layers).items():
            layer = self._model.get_submodule(path)
            layer.forward = partial(layers[number], layer.forward)

    def begin(self) -> None:
        """Choose the way to compute, on all ranks at once. Raises UnsupportedModel; called again, it does nothing."""
        if self._far:
            self._root(super()._begin, self._far)
            self._far = 0.0

    def scores(self, batch: PackedTokens) -> "tuple[torch.Tensor, torch.Tensor]":
        found: tuple[torch.Tensor, torch.Tensor] = self._root(super().scores, batch)
        return found

    def _begin(self, far: float) -> None:
        """There are no weights yet to try the model on."""
        self._far = far


def layer_paths(parameters: FlatParameters, model: LibraryModel, layers: Mapping[str, Any]) -> dict[str, str]:
    """Return the path of each layer in the library's model. Raises UnsupportedModel where files name it otherwise."""
    found: dict[str, str] = {}
    for stack in stacks_of(model, words_of({name: parameters.shape(name) for name in parameters.names})):
        number = layer_of(stack.weights[0])
        if not number:
            continue
        before, mark, _ = stack.parameter.partition(f".layers.{number}.")
        path = f"{before}{mark}".rstrip(".")
        if not mark or found.setdefault(number, path) != path:
            raise UnsupportedModel(f"the layer of {stack.weights[0]} is not {path}; set devices: 1")
    return found


def layer_of(name: str) -> str:
    """Return the layer that a weight belongs to, empty for none."""
    parts = name.split(".")
    return parts[2] if len(parts) > 2 and parts[1] == "layers" else ""
