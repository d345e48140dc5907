"""What a run's policies are made of: tokenizers, learners, and the store of its versions.

A `VersionStore` is this process's view of what a policy keeps on disk. It is closed when the policy moves to another
trainer, which has a view of its own from then on, and read again when it comes back.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.team import Lora, PolicySpec
from workers.memory import Spare
from workers.models.families import shape_of
from workers.models.tokenizer import Spoken
from workers.rollout.environments.registry import family_of
from workers.training.bases import Bases
from workers.training.beginning import spoken_by
from workers.training.checkpoints import Export
from workers.training.held_replies import HeldReplies
from workers.training.learner import Adapter, Learner
from workers.training.objective import Objective
from workers.training.unrolling import Unrolling
from workers.training.version_store import StoredVersion, VersionStore

if TYPE_CHECKING:
    import torch

KIND = {"model", "log_probs", "tuning", "precision", "optimizer", "activations", "trainer"}
"""Settings of a policy that its learner computes with."""


class Making:
    def __init__(
        self, spec: ExperimentSpec, run_id: int, home: str, device: str, beat: Callable[[], object] = lambda: None
    ) -> None:
        self.family = family_of(spec.environment)
        self._spec = spec
        self._run_id = run_id
        self._home = home
        self.device = device
        self._beat, self._spare = beat, Spare()
        self.bases = Bases(device)
        self._stores: dict[str, VersionStore] = {}
        self._replies: dict[str, HeldReplies] = {}

    def store(self, policy: str) -> VersionStore:
        if policy not in self._stores:
            self._stores[policy] = VersionStore(self._home, self._run_id, policy)
        return self._stores[policy]

    def find_base(self, policy: str, digest: str) -> None:
        """Go on with what a version is laid over, if the policy trains an adapter. Raises WrongAdapterError."""
        tuning = self._spec.policies[policy].tuning
        if isinstance(tuning, Lora):
            self.store(policy).find_base(digest, policy, tuning)

    def close_shelf(self, policy: str) -> None:
        """Wait for what is written beside, and read the store anew when the policy comes back."""
        store = self._stores.pop(policy, None)
        if store is not None:
            store.settle()

    def settle(self) -> None:
        """Wait until nothing is being removed from the state plane any more."""
        for store in self._stores.values():
            store.settle()

    @property
    def words(self) -> int:
        """Return the size of the environment's vocabulary."""
        return len(self.family.vocabulary())

    def spoken(self, policy: str) -> Spoken:
        """Return by which files the policy's model reads and writes. Raises UnsupportedModel for what is missing."""
        return spoken_by(self._spec, policy, self.family.vocabulary())

    def replies(self, policy: str, known: Spoken | None = None) -> HeldReplies:
        """Return what makes the masks of the policy's replies that were held to a grammar; `known`: how it speaks."""
        if policy not in self._replies:
            self._replies[policy] = HeldReplies((known or self.spoken(policy)).tokenizer)
        return self._replies[policy]

    def learner(self, policy: str, epoch: str, weights: "Mapping[str, torch.Tensor]") -> Learner:
        """Return a learner of published weights: a whole model's, or an adapter's over the stored base."""
        settings, algorithm = self._spec.policies[policy], self._spec.algorithm
        under, adapter = self.bases.beneath(settings, weights, self.store(policy))
        return Learner(
            under,
            shape_of(settings),
            Objective.of(algorithm.loss, algorithm),
            settings.optimizer,
            settings.precision,
            self.device,
            epoch,
            self._spec.mechanisms.ordered,
            self._after_pass,
            adapter,
            settings.activations == "recompute",
            Unrolling.of(settings, self._spec.seed),
        )

    def _after_pass(self) -> None:
        self._beat()
        self._spare.return_much(self.device)  # a pass of other lengths would lie beside the gaps that this one has left

    def put_first(self, policy: str, learner: Learner) -> StoredVersion:
        """Store version 0."""
        weights, store = learner.parameters.named(), self.store(policy)
        if policy in self._spec.trainable_policies():
            return store.put(weights, learner.training_state())
        return StoredVersion(store.put_weights(weights), "")

    def keep(self, policy: str, version: int, learner: Learner) -> StoredVersion:
        """Store what a step made, as durably as the specification says."""
        durability, store = self._spec.mechanisms.durability, self.store(policy)
        weights = learner.parameters.named()
        if durability.type == "async":
            return store.put_behind(weights, learner.training_state())
        if version % durability.every:
            return StoredVersion(store.put_weights(weights), "")
        return store.put(weights, learner.training_state())

    def export(self, policy: str, digest: str) -> Export:
        """Return a version as a checkpoint writes it, whoever trains the policy."""
        settings, store, tokenizer = (
            self._spec.policies[policy],
            self.store(policy),
            self.spoken(policy).tokenizer,
        )
        weights = store.weights(digest)
        if not isinstance(settings.tuning, Lora):
            return Export(policy, settings.source, tokenizer, weights)
        store.find_base(digest, policy, settings.tuning)
        return Export(policy, settings.source, tokenizer, store.base(), Adapter(settings.tuning, weights))


def kind_of(policy: PolicySpec) -> str:
    """Return what policies have in common whose learners can take each other's place."""
    return policy.model_dump_json(include=KIND)
