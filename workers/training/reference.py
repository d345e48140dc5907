"""The policies that trained ones are compared with: of each some earlier versions, which the specification names.

A KL penalty and pairs of members are seen from one version, the reference; MNPO from the ends of the last rounds too,
all of which together say the weighted sum of their log-probabilities.

Invariants: such a version is never trained, and it is the same for every life of a trainer, since its weights are found
by the digest of a version and claimed in the state plane: the first and a named one for as long as the run's folder is
there, of those that are renewed and of ends of rounds the newest, and as many before them as steps that are taken again
can ask for. A version is loaded once, however often it is compared with. A run that compares with none loads none. They
stay on the device while their policy is suspended, unless an engine gets the device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.losses import MOST_OPPONENTS
from flexmarl.contracts.specification.reference import FirstVersion, NamedVersion, RenewedVersion
from flexmarl.contracts.specification.team import Lora
from workers.models.families import shape_of
from workers.training.adapted import LowRank
from workers.training.back_ends import order_of, trained_model
from workers.training.bases import Bases
from workers.training.packing import PackedTokens
from workers.training.parameters import FlatParameters
from workers.training.trained_model import TokenScorer, TrainedModel
from workers.training.version_store import VersionStore
from workers.transfer import StateMissing

if TYPE_CHECKING:
    import torch

LABEL, ROUND = "reference", "round"
RENEWED_KEPT = 3
"""Of a reference that is renewed: the one in use, the one before it that steps taken again need, and one more, since
the newest version may be given up after it became the reference."""
ROUNDS_KEPT = MOST_OPPONENTS + 2
"""Of ends of rounds: the opponents in use, one before them, and one more, for the same reasons."""


@dataclass(frozen=True, slots=True)
class LogLinearMixture:
    """Some versions together: their log-probabilities and entropies, weighed and added up."""

    parts: tuple[tuple[TokenScorer, float], ...]

    def scores(self, batch: PackedTokens) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return what all parts say of a pack's tokens."""
        said = [(weight, *part.scores(batch)) for part, weight in self.parts]
        logprobs, entropies = ([weight * each[place] for weight, *each in said] for place in (0, 1))
        return sum(logprobs[1:], logprobs[0]), sum(entropies[1:], entropies[0])


@dataclass(slots=True)
class _Compared:
    """What one policy is compared with."""

    digests: dict[int, str]
    """By version."""
    weights: dict[str, float] = field(default_factory=dict)
    """Of each digest; none where ranks share them."""
    decoders: dict[str, TrainedModel] = field(default_factory=dict)

    def together(self) -> TokenScorer:
        """Return all of it as one."""
        parts = tuple((self.decoders[digest], weight) for digest, weight in self.weights.items())
        return parts[0][0] if [weight for _, weight in parts] == [1.0] else LogLinearMixture(parts)


class References:
    def __init__(self, spec: ExperimentSpec, device: str, bases: Bases) -> None:
        self._spec = spec
        self._device = device
        self.bases = bases
        self._compared: dict[str, _Compared] = {}

    def get(self, policy: str) -> TokenScorer | None:
        """Return what a policy is compared with, None where nothing is."""
        held = self._compared.get(policy)
        return held.together() if held is not None and held.decoders else None

    def begins(self, version: int) -> bool:
        """Tell whether a version is compared with from itself on."""
        return version in self._spec.algorithm.compared_with(version)

    def after(self, policy: str, version: int, digest: str) -> list[str]:
        """Return by what digests to know what a new version is compared with, which begins to be that itself."""
        known = self._compared[policy].digests if policy in self._compared else {}
        return [(known | {version: digest}).get(number, "") for number in self._numbers(policy, version)]

    def clear(self) -> None:
        """Let go of what policies are compared with; it is loaded again when one comes back."""
        self._compared.clear()

    def take(self, policy: str, digests: Sequence[str], version: int, store: VersionStore) -> TokenScorer | None:
        """Load what a version is compared with, as far as it is not there. Raises StateError when it cannot be had."""
        numbers = self._numbers(policy, version)
        if not numbers:
            self._compared.pop(policy, None)
            return None
        named = _named(policy, numbers, digests)
        weights: dict[str, float] = {}
        for number, digest in named.items():
            weights[digest] = weights.get(digest, 0.0) + numbers[number]
        held = self._compared.pop(policy, _Compared({}))
        if (held.digests, held.weights) != (named, weights):
            # What is compared with no more goes before the next is loaded: both need not fit.
            decoders = {digest: own for digest, own in held.decoders.items() if digest in weights}
            del held
            for digest in weights.keys() - decoders.keys():
                decoders[digest] = self._decoder(policy, store.weights(digest), store)
            self._hold(named, version, store)
            held = _Compared(named, weights, decoders)
        self._compared[policy] = held
        return held.together()

    def shared(
        self, policy: str, digests: Sequence[str], version: int, store: VersionStore
    ) -> "Mapping[str, torch.Tensor] | None":
        """Return what a version is compared with for the ranks that share it, None where it is not needed.

        What this trainer alone compared the policy with goes. Raises StateError when it cannot be had.
        """
        self._compared.pop(policy, None)
        numbers = self._numbers(policy, version)
        if not numbers:
            return None
        named = _named(policy, numbers, digests)
        [digest] = named.values()  # pairs, which alone have opponents, are refused with ranks
        weights = store.weights(digest)
        self._hold(named, version, store)
        self._compared[policy] = _Compared(named)
        return weights

    def shared_already(self, policy: str, digests: Sequence[str], version: int) -> bool:
        """Tell whether the ranks that share a policy compare it with these digests, or with none at all."""
        numbers, held = self._numbers(policy, version), self._compared.get(policy)
        return not numbers or (held is not None and held == _Compared(dict(zip(numbers, digests, strict=False))))

    def _numbers(self, policy: str, version: int) -> dict[int, float]:
        """Return the versions that one of a policy is compared with, and their weights."""
        return self._spec.algorithm.compared_with(version) if policy in self._spec.trainable_policies() else {}

    def _hold(self, named: Mapping[int, str], version: int, store: VersionStore) -> None:
        """Claim what a version is compared with, for as long as it may be asked for."""
        algorithm = self._spec.algorithm
        opponents, near = algorithm.loss.opponents_of(version), algorithm.reference_of(version)
        for number, digest in named.items():
            if number in opponents:
                store.hold_all({digest}, f"{ROUND}-{algorithm.loss.round_of(number) % ROUNDS_KEPT}")
            if algorithm.needs_reference and number == near:
                store.hold_all({digest}, _label(algorithm.kl.reference, number))

    def _decoder(self, policy: str, weights: "Mapping[str, torch.Tensor]", store: VersionStore) -> TrainedModel:
        settings = self._spec.policies[policy]
        shape, precision = shape_of(settings), settings.precision
        if not isinstance(settings.tuning, Lora):
            order = order_of(shape, {name: tuple(tensor.shape) for name, tensor in weights.items()})
            return trained_model(shape, FlatParameters(weights, order, precision, self._device, frozen=True))
        base = self.bases.under(store, shape, precision)
        adapter = LowRank(base, weights, settings.tuning, precision, self._device, frozen=True)
        return trained_model(shape, base, adapter)


def _named(policy: str, numbers: Mapping[int, float], digests: Sequence[str]) -> dict[int, str]:
    """Return the digest of each version. Raises StateMissing where one was not said."""
    named = dict(zip(numbers, digests, strict=False))
    for number in numbers:
        if not named.get(number):
            raise StateMissing(f"version {number} of {policy}", "nobody said by what digest it is known")
    return named


def _label(reference: FirstVersion | NamedVersion | RenewedVersion, number: int) -> str:
    """Name the claim of a reference: what takes its name lets go of it."""
    if isinstance(reference, RenewedVersion):
        return f"{LABEL}-{number // reference.every % RENEWED_KEPT}"
    return f"{LABEL}-{number}" if number else LABEL
