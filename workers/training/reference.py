"""The policies that trained ones are kept near to: each one's first version, demonstrations included.

Invariants: a reference is never trained, and it is the same for every life of a trainer, since its weights are found by
the digest of version 0 and claimed in the state plane for as long as the run's folder is there. A run that compares
with none loads none. It stays on the device while its policy is suspended, unless an engine gets the device.
"""

from typing import TYPE_CHECKING

from flexmarl.contracts.spec.experiment import ExperimentSpec
from flexmarl.contracts.spec.team import Lora
from workers.models import architecture_of
from workers.training.adapted import LowRank
from workers.training.bases import Bases
from workers.training.decoder import Decoder, parameter_order
from workers.training.parameters import FlatParameters
from workers.training.shelf import Shelf
from workers.transfer import StateMissing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

LABEL = "reference"


class References:
    def __init__(self, spec: ExperimentSpec, device: str, bases: Bases) -> None:
        self._spec = spec
        self._device = device
        self.bases = bases
        self._decoders: dict[str, Decoder] = {}

    def get(self, policy: str) -> Decoder | None:
        """Return what a policy is compared with, None where nothing is."""
        return self._decoders.get(policy)

    def take(self, policy: str, digest: str, shelf: Shelf) -> Decoder | None:
        """Load a policy's first version, if it is needed and not there. Raises StateError when it cannot be had."""
        weights = None if policy in self._decoders else self._weights(policy, digest, shelf)
        if weights is not None:
            self._decoders[policy] = self._decoder(policy, weights, shelf)
        return self._decoders.get(policy)

    def clear(self) -> None:
        """Let go of what policies are compared with; it is loaded again when one comes back."""
        self._decoders.clear()

    def shared(self, policy: str, digest: str, shelf: Shelf) -> "Mapping[str, torch.Tensor] | None":
        """Return a policy's first version for the ranks that share it, None where it is not needed.

        What this trainer alone compared the policy with goes. Raises StateError when it cannot be had.
        """
        self._decoders.pop(policy, None)
        return self._weights(policy, digest, shelf)

    def _weights(self, policy: str, digest: str, shelf: Shelf) -> "Mapping[str, torch.Tensor] | None":
        if not self._spec.algorithm.needs_reference or policy not in self._spec.trainable_policies():
            return None
        if not digest:
            raise StateMissing(f"version 0 of {policy}", "nobody said by what digest it is known")
        weights = shelf.weights(digest)
        shelf.hold(digest, LABEL)
        return weights

    def _decoder(self, policy: str, weights: "Mapping[str, torch.Tensor]", shelf: Shelf) -> Decoder:
        settings = self._spec.policies[policy]
        architecture, precision = architecture_of(settings.model), settings.precision
        if not isinstance(settings.tuning, Lora):
            order = parameter_order(weights.keys())
            return Decoder(FlatParameters(weights, order, precision, self._device, frozen=True), architecture)
        base = self.bases.under(shelf, precision)
        adapter = LowRank(base, weights, settings.tuning, precision, self._device, frozen=True)
        return Decoder(base, architecture, adapter)
