"""What a run's policies are made of: tokenizers, first weights, learners, and the shelf that its versions lie on.

A shelf is this process's view of what a policy keeps on disk. It is closed when the policy goes to another trainer,
which has a view of its own from then on, and read anew when it comes back.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.spec.experiment import ExperimentSpec
from flexmarl.contracts.spec.team import Lora, PolicySpec
from workers.models import architecture_of, tokenizer_of
from workers.models.adapter import initial_adapter
from workers.models.weights import initial_weights
from workers.rollout.environments.registry import family_of
from workers.training.bases import Bases
from workers.training.checkpoints import Export
from workers.training.learner import Adapter, Learner
from workers.training.objective import Objective
from workers.training.shelf import Shelf, Stored

if TYPE_CHECKING:
    import torch


class Making:
    def __init__(
        self, spec: ExperimentSpec, run_id: int, home: str, device: str, beat: Callable[[], object] = lambda: None
    ) -> None:
        self.family = family_of(spec.environment)
        self._spec = spec
        self._run_id = run_id
        self._home = home
        self._device = device
        self._beat = beat
        self.bases = Bases(device)
        self._shelves: dict[str, Shelf] = {}

    def shelf(self, policy: str) -> Shelf:
        if policy not in self._shelves:
            self._shelves[policy] = Shelf(self._home, self._run_id, policy)
        return self._shelves[policy]

    def close_shelf(self, policy: str) -> None:
        """Wait for what is written beside, and read the shelf anew when the policy comes back."""
        shelf = self._shelves.pop(policy, None)
        if shelf is not None:
            shelf.settle()

    def settle(self) -> None:
        """Wait until nothing is being removed from the state plane any more."""
        for shelf in self._shelves.values():
            shelf.settle()

    def tokenizer(self, policy: str) -> bytes:
        """Return tokenizer.json of the policy's model source."""
        return tokenizer_of(self._spec.policies[policy].model, self.family.vocabulary())

    def first_weights(self, policy: str) -> "dict[str, torch.Tensor]":
        """Return what version 0 publishes. Adapters over equal models have one base, whoever trains them."""
        settings, seed, words = self._spec.policies[policy], self._spec.seed, len(self.family.vocabulary())
        if not isinstance(settings.tuning, Lora):
            return initial_weights(settings.model, words, derive(seed, "weights", policy))
        base = initial_weights(settings.model, words, derive(seed, "base", settings.model.model_dump_json()))
        if settings.precision == "bf16":  # engines compute with the very weights that the trainer does
            base = {name: tensor.bfloat16() for name, tensor in base.items()}
        self.shelf(policy).put_base(base, settings.tuning)
        return initial_adapter(base, settings.tuning, derive(seed, "weights", policy))

    def learner(self, policy: str, epoch: str, weights: "Mapping[str, torch.Tensor]") -> Learner:
        """Return a learner of published weights: a whole model's, or an adapter's over the base on the shelf."""
        settings, algorithm = self._spec.policies[policy], self._spec.algorithm
        under, adapter = self.bases.beneath(settings, weights, self.shelf(policy))
        return Learner(
            under,
            architecture_of(settings.model),
            Objective.of(algorithm.loss, algorithm),
            settings.optimizer,
            settings.precision,
            self._device,
            epoch,
            self._spec.mechanisms.ordered,
            self._beat,
            adapter,
            settings.activations == "recompute",
        )

    def put_first(self, policy: str, learner: Learner) -> Stored:
        """Store version 0."""
        weights, shelf = learner.parameters.named(), self.shelf(policy)
        if policy in self._spec.trainable_policies():
            return shelf.put(weights, learner.training_state())
        return Stored(shelf.put_weights(weights), "")

    def keep(self, policy: str, version: int, learner: Learner) -> Stored:
        """Store what a step made, as durably as the specification says."""
        durability, shelf = self._spec.mechanisms.durability, self.shelf(policy)
        weights = learner.parameters.named()
        if durability.type == "async":
            return shelf.put_behind(weights, learner.training_state())
        if version % durability.every:
            return Stored(shelf.put_weights(weights), "")
        return shelf.put(weights, learner.training_state())

    def export(self, policy: str, digest: str) -> Export:
        """Return a version as a checkpoint writes it, whoever trains the policy."""
        settings, shelf, tokenizer = self._spec.policies[policy], self.shelf(policy), self.tokenizer(policy)
        weights = shelf.weights(digest)
        if not isinstance(settings.tuning, Lora):
            return Export(policy, settings.model, tokenizer, weights)
        shelf.find_base(digest, policy, settings.tuning)
        return Export(policy, settings.model, tokenizer, shelf.base(), Adapter(settings.tuning, weights))


def kind_of(policy: PolicySpec) -> str:
    """Return what policies have in common whose learners can take each other's place."""
    return policy.model_dump_json(include={"model", "tuning", "precision", "optimizer", "activations"})
