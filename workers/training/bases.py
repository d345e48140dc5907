"""The frozen weights that adapters of one trainer are laid over.

Invariant: each is in memory once, for all policies and references that are laid over it, and for as long as one of them
is there.
"""

from weakref import WeakValueDictionary

from workers.training.decoder import parameter_order
from workers.training.parameters import FlatParameters
from workers.training.shelf import Shelf


class Bases:
    def __init__(self, device: str) -> None:
        self._device = device
        self._held: WeakValueDictionary[tuple[str, str], FlatParameters] = WeakValueDictionary()

    def under(self, shelf: Shelf, precision: str) -> FlatParameters:
        """Return what a policy's adapters are laid over, to compute with in a precision. Raises StateError."""
        key = shelf.base_digest, precision
        base = self._held.get(key)
        if base is None:
            weights = shelf.base()
            base = FlatParameters(weights, parameter_order(weights.keys()), precision, self._device, frozen=True)
            self._held[key] = base
        return base
