"""The policies that trained ones are kept near to: of each an earlier version, which the specification names.

Invariants: a reference is never trained, and it is the same for every life of a trainer, since its weights are found by
the digest of a version and claimed in the state plane: the first and a named one for as long as the run's folder is
there, of those that are renewed the newest, and as many before it as steps that are taken again can ask for. A run that
compares with none loads none. It stays on the device while its policy is suspended, unless an engine gets
the device.
"""

from typing import TYPE_CHECKING

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.reference import FirstVersion, NamedVersion, RenewedVersion
from flexmarl.contracts.specification.team import Lora
from workers.models.families import shape_of
from workers.training.adapted import LowRank
from workers.training.back_ends import language_model, order_of
from workers.training.bases import Bases
from workers.training.language_model import LanguageModel
from workers.training.parameters import FlatParameters
from workers.training.version_store import VersionStore
from workers.transfer import StateMissing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

LABEL = "reference"
RENEWED_KEPT = 3
"""Of a reference that is renewed: the one in use, the one before it that steps taken again need, and one more, since
the newest version may be given up after it became the reference."""


class References:
    def __init__(self, spec: ExperimentSpec, device: str, bases: Bases) -> None:
        self._spec = spec
        self._device = device
        self.bases = bases
        self._decoders: dict[str, tuple[str, LanguageModel | None]] = {}
        """Policy -> digest of what it is compared with, and its weights; None where ranks share them."""

    def get(self, policy: str) -> LanguageModel | None:
        """Return what a policy is compared with, None where nothing is."""
        held = self._decoders.get(policy)
        return None if held is None else held[1]

    def begins(self, version: int) -> bool:
        """Tell whether a version is compared with from itself on."""
        algorithm = self._spec.algorithm
        return algorithm.needs_reference and algorithm.reference_of(version) == version

    def clear(self) -> None:
        """Let go of what policies are compared with; it is loaded again when one comes back."""
        self._decoders.clear()

    def take(self, policy: str, digest: str, version: int, store: VersionStore) -> LanguageModel | None:
        """Load what a version is compared with, unless it is there. Raises StateError when it cannot be had."""
        if not self._compared(policy):
            return None
        held = self._decoders.get(policy)
        if held is not None and held[0] == digest and held[1] is not None:
            return held[1]
        self._decoders.pop(policy, None)  # two of them need not fit
        decoder = self._decoder(policy, self._weights(policy, digest, version, store), store)
        self._decoders[policy] = digest, decoder
        return decoder

    def shared(
        self, policy: str, digest: str, version: int, store: VersionStore
    ) -> "Mapping[str, torch.Tensor] | None":
        """Return what a version is compared with for the ranks that share it, None where it is not needed.

        What this trainer alone compared the policy with goes. Raises StateError when it cannot be had.
        """
        self._decoders.pop(policy, None)
        if not self._compared(policy):
            return None
        weights = self._weights(policy, digest, version, store)
        self._decoders[policy] = digest, None
        return weights

    def shared_already(self, policy: str, digest: str) -> bool:
        """Tell whether the ranks that share a policy compare it with this digest, or with none at all."""
        return not self._compared(policy) or self._decoders.get(policy) == (digest, None)

    def _compared(self, policy: str) -> bool:
        return self._spec.algorithm.needs_reference and policy in self._spec.trainable_policies()

    def _weights(self, policy: str, digest: str, version: int, store: VersionStore) -> "Mapping[str, torch.Tensor]":
        """Read and keep the reference of a version."""
        number = self._spec.algorithm.reference_of(version)
        if not digest:
            raise StateMissing(f"version {number} of {policy}", "nobody said by what digest it is known")
        weights = store.weights(digest)
        store.hold_all({digest}, _label(self._spec.algorithm.kl.reference, number))
        return weights

    def _decoder(self, policy: str, weights: "Mapping[str, torch.Tensor]", store: VersionStore) -> LanguageModel:
        settings = self._spec.policies[policy]
        shape, precision = shape_of(settings), settings.precision
        if not isinstance(settings.tuning, Lora):
            order = order_of(shape, {name: tuple(tensor.shape) for name, tensor in weights.items()})
            return language_model(shape, FlatParameters(weights, order, precision, self._device, frozen=True))
        base = self.bases.under(store, shape, precision)
        adapter = LowRank(base, weights, settings.tuning, precision, self._device, frozen=True)
        return language_model(shape, base, adapter)


def _label(reference: FirstVersion | NamedVersion | RenewedVersion, number: int) -> str:
    """Name the claim of a reference: what takes its name lets go of it."""
    if isinstance(reference, RenewedVersion):
        return f"{LABEL}-{number // reference.every % RENEWED_KEPT}"
    return f"{LABEL}-{number}" if number else LABEL
