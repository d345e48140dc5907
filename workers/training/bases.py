"""The frozen weights that adapters of one trainer are laid over.

Invariant: each is in memory once, for all policies and references that are laid over it, and for as long as one of them
is there.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from flexmarl.contracts.specification.team import Lora, PolicySpec
from workers.models.families import Shape, shape_of
from workers.training.back_ends import order_of
from workers.training.learner import Adapter
from workers.training.parameters import FlatParameters
from workers.training.version_store import VersionStore

if TYPE_CHECKING:
    import torch


class Bases:
    def __init__(self, device: str) -> None:
        self._device = device
        self._held: WeakValueDictionary[tuple[str, Shape, str], FlatParameters] = WeakValueDictionary()

    def beneath(
        self, settings: PolicySpec, weights: "Mapping[str, torch.Tensor]", store: VersionStore
    ) -> "tuple[Mapping[str, torch.Tensor] | FlatParameters, Adapter | None]":
        """Return what a learner of published weights computes with, and the adapter over it if these are one's."""
        if not isinstance(settings.tuning, Lora):
            return weights, None
        return self.under(store, shape_of(settings), settings.precision), Adapter(settings.tuning, weights)

    def under(self, store: VersionStore, shape: Shape, precision: str) -> FlatParameters:
        """Return what a policy's adapters are laid over, to compute with in a precision. Raises StateError."""
        key = store.base_digest, shape, precision
        base = self._held.get(key)
        if base is None:
            weights = store.base()
            order = order_of(shape, {name: tuple(tensor.shape) for name, tensor in weights.items()})
            base = FlatParameters(weights, order, precision, self._device, frozen=True)
            self._held[key] = base
        return base
