"""The two trainer back ends behind one protocol: the order in which each wants the weights, and its language model."""

from collections.abc import Mapping
from contextlib import suppress

from workers.models.architecture import Architecture, UnsupportedModel
from workers.models.families import Shape
from workers.training.adapted import LowRank
from workers.training.decoder import Decoder, parameter_order
from workers.training.families.decoder import LibraryDecoder
from workers.training.families.skeleton import library_order
from workers.training.language_model import LanguageModel
from workers.training.parameters import FlatParameters


def order_of(shape: Shape, weights: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return the names of weights in the order in which they lie in memory. Raises UnsupportedModel for a stranger.

    Both back ends lay out one model in one order, so that a training state of the one is one of the other.
    """
    if isinstance(shape, Architecture):
        return parameter_order(weights.keys())
    order = library_order(shape, weights)
    with suppress(UnsupportedModel):
        return parameter_order(weights.keys())
    return order


def language_model(
    shape: Shape, parameters: FlatParameters, adapter: LowRank | None = None, recompute: bool = False
) -> LanguageModel:
    """Return what computes with weights, and an adapter over them. Raises UnsupportedModel.

    `recompute`: keep of each layer its input alone, and compute the rest again in the backward pass.
    """
    if isinstance(shape, Architecture):
        return Decoder(parameters, shape, adapter, recompute)
    return LibraryDecoder(parameters, shape, adapter, recompute)
