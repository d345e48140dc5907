"""The verbs of a trainer process, for all policies of a run: bind, accumulate, step, checkpoint. Synchronous.

Invariants. The weights of a version a reply names are durable in the state plane before the reply exists, and so is the
training state that it names; a version without one is restored by redoing the committed steps behind the last that has
one, which makes no version anew. Each verb may be asked again
with the same words and answers the same without doing it twice. When storing a step fails, the policy is no longer
held: memory is never ahead of what the platform can restore. Accumulator epochs are `<version>:<incarnation>`, so
nothing meant for an earlier life or version is ever taken in.
"""

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from flexmarl.algorithms.seeds import derive
from flexmarl.contracts.spec.experiment import ExperimentSpec
from flexmarl.contracts.spec.team import Lora, PolicySpec
from workers.child import IntervalLog
from workers.models import UnsupportedModel, architecture_of, tokenizer_of
from workers.models.adapter import WrongAdapterError
from workers.rollout.environments.registry import family_of
from workers.training.beginning import beginning_of, tokenizer_for
from workers.training.checkpoints import Export, write_checkpoint
from workers.training.checks import check_tokenizer
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.folders import root_of
from workers.training.learner import Adapter, Learner
from workers.training.objective import Objective
from workers.training.reference import References
from workers.training.shelf import Shelf, Stored
from workers.training.suspending import Suspension, plane_of
from workers.training.taken import content_of, redo
from workers.training.warmup import warm_up
from workers.training.wire import (
    AccumulateReply,
    AccumulateRequest,
    BindReply,
    BindRequest,
    CheckpointReply,
    CheckpointRequest,
    StepReply,
    StepRequest,
    SuspendReply,
    SuspendRequest,
)
from workers.transfer import StateError, StateMissing
from workers.vocabulary import Codec

if TYPE_CHECKING:
    import torch

log = structlog.get_logger(__name__)

CREATE = -1
"""Version of a bind request that asks for version 0 to be made."""


@dataclass
class Held:
    """A policy this trainer holds."""

    version: int
    stored: Stored
    tokenizer: bytes
    learner: Learner | None
    """None for a policy that nobody trains."""
    created: BindReply | None = None
    """The reply that made version 0, while it is the one held."""
    stepped: dict[tuple[object, ...], StepReply] = field(default_factory=dict)
    """The last step asked for, and its answer."""


class Trainer:
    def __init__(
        self, spec: ExperimentSpec, run_id: int, incarnation: str, home: str, device: str, intervals: IntervalLog
    ) -> None:
        self._spec = spec
        self._run_id = run_id
        self._incarnation = incarnation
        self._home = home
        self._device = device
        self._intervals = intervals
        self._family = family_of(spec.environment)
        self._held: dict[str, Held] = {}
        self._shelves: dict[str, Shelf] = {}
        self._suspension: Suspension[Held] = Suspension(partial(plane_of, home, run_id))
        self._references = References(spec, device)
        self._behind: dict[str, dict[int, str]] = {}
        """Policy -> version whose training state is being written, with its digest."""

    def bind(self, asked: BindRequest) -> BindReply:
        """Hold a policy: made new, restored, or as it is; its accumulator is empty afterwards."""
        if asked.policy not in self._spec.policies:
            raise TrainerRefusal(RefusalCode.NOT_BOUND, f"the run has no policy {asked.policy!r}")
        began = time.time()
        try:
            reply = self._create(asked) if asked.version == CREATE else self._restore(asked)
        except StateError as error:
            raise TrainerRefusal(RefusalCode.STATE, str(error)) from error
        except (UnsupportedModel, FileNotFoundError) as error:
            raise TrainerRefusal(RefusalCode.UNSUPPORTED_MODEL, str(error)) from error
        except WrongAdapterError as error:
            raise TrainerRefusal(RefusalCode.WRONG_ADAPTER, str(error)) from error
        self._intervals.add("bind", asked.policy, began, time.time())
        return reply

    def accumulate(self, asked: AccumulateRequest) -> AccumulateReply:
        """Add a micro-batch's gradient to the policy's accumulator."""
        learner, version = self._learner(asked.policy), self._holding(asked.policy).version
        began = time.time()
        stats = learner.accumulate(
            asked.accumulator, asked.micro_batch, content_of(asked.rows), asked.rows, asked.entropy_coef, version,
            self._references.get(asked.policy),
        )  # fmt: skip
        pace = self._spec.resources.pace
        keep_pace(began, pace.micro_batch_s + pace.row_s * len(asked.rows))
        self._intervals.add("train", asked.policy, began, time.time(), stats.tokens)
        return AccumulateReply(stats.model_dump())

    def step(self, asked: StepRequest) -> StepReply:
        """Step on exactly the named micro-batches and store the next version."""
        held = self._holding(asked.policy)
        key = (asked.accumulator, tuple(sorted(asked.micro_batches)), asked.next_version)
        if key in held.stepped:
            return held.stepped[key]
        learner = self._learner(asked.policy)
        learner.accumulator.check_exactly(asked.accumulator, tuple(asked.micro_batches))
        if asked.next_version != held.version + 1:
            detail = f"version {asked.next_version} asked for, {held.version + 1} follows"
            raise TrainerRefusal(RefusalCode.OTHER_VERSION, detail, learner.accumulator.epoch)
        began = time.time()
        learned = learner.step(asked.learning_rate)
        keep_pace(began, self._spec.resources.pace.step_s)
        del self._held[asked.policy]  # held again once the new version is stored
        try:
            stored = self._keep(asked.policy, asked.next_version, learner)
        except StateError as error:  # the disk is full: the step is taken again once the policy is bound
            raise TrainerRefusal(RefusalCode.STATE, str(error)) from error
        durable = {}
        if self._spec.mechanisms.durability.type == "async":
            durable, self._behind[asked.policy] = self._behind.get(asked.policy, {}), {asked.next_version: stored.state}
            stored = Stored(stored.weights, "")
        ended = time.time()
        reply = StepReply(
            version=asked.next_version,
            digest=stored.weights,
            state=stored.state,
            null_step=learned.null_step,
            grad_norm=learned.grad_norm,
            seconds=ended - began,
            durable=durable,
        )
        learner.accumulator.open(self._epoch(asked.next_version))
        self._held[asked.policy] = Held(asked.next_version, stored, held.tokenizer, learner, stepped={key: reply})
        self._intervals.add("step", asked.policy, began, ended)
        return reply

    def _keep(self, policy: str, version: int, learner: Learner) -> Stored:
        """Store what a step made, as durably as the specification says."""
        durability, shelf = self._spec.mechanisms.durability, self._shelf(policy)
        weights = learner.parameters.named()
        if durability.type == "async":
            return shelf.put_behind(weights, learner.training_state())
        if version % durability.every:
            return Stored(shelf.put_weights(weights), "")
        return shelf.put(weights, learner.training_state())

    def suspend(self, asked: SuspendRequest) -> SuspendReply:
        """Take a policy off the device, accumulator and all; whatever is asked of it next brings it back.

        Asked again, it answers the same without doing it twice.
        """
        if (already := self._suspension.get(asked.policy)) is not None:
            return SuspendReply(already.ticket.bytes)
        learner, held, began = self._learner(asked.policy), self._holding(asked.policy), time.time()
        try:
            done = self._suspension.suspend(
                asked.policy, learner, kind_of(self._spec.policies[asked.policy]), replace(held, learner=None)
            )
        except StateError as error:
            raise TrainerRefusal(RefusalCode.STATE, str(error)) from error
        del self._held[asked.policy]
        self._intervals.add("suspend", asked.policy, began, time.time())
        return SuspendReply(done.ticket.bytes)

    def _here(self, policy: str) -> Held | None:
        """Return a policy that is held, back from where it was suspended; None when that is lost, or never was."""
        suspended, began = self._suspension.get(policy), time.time()
        if suspended is not None:
            make = partial(self._new_learner, policy, suspended.rest.version)
            try:
                learner = self._suspension.resume(policy, kind_of(self._spec.policies[policy]), make)
            except StateError as error:
                log.warning("suspended state is lost", policy=policy, error=str(error))
                return None
            self._held[policy] = replace(suspended.rest, learner=learner)
            self._intervals.add("resume", policy, began, time.time())
        return self._held.get(policy)

    def checkpoint(self, asked: CheckpointRequest) -> CheckpointReply:
        """Export the named versions, which need not be the newest."""
        began = time.time()
        label = f"step-{asked.step}"
        about = {"run": self._run_id, "step": asked.step, "versions": asked.versions, "digests": asked.digests}
        exports = (self._export(*pair) for pair in asked.digests.items())
        try:
            written = write_checkpoint(root_of(self._home, self._run_id), label, about, exports)
            states = {policy: self._shelf(policy).hold(digest, label) for policy, digest in asked.digests.items()}
        except StateError as error:
            raise TrainerRefusal(RefusalCode.STATE, str(error)) from error
        self._intervals.add("checkpoint", "", began, time.time())
        return CheckpointReply(written.path, written.bytes, states)

    def let_go(self, policy: str) -> None:
        """Hold a policy no more, if it is held: what broke off in the middle is restored from what is on disk."""
        self._held.pop(policy, None)
        self._suspension.forget(policy)

    def settle(self) -> None:
        """Wait until nothing is being removed from the state plane any more."""
        for shelf in self._shelves.values():
            shelf.settle()

    def _create(self, asked: BindRequest) -> BindReply:
        policy = asked.policy
        held = self._here(policy)
        if held is not None and held.created is not None:
            self._empty(held)
            return held.created
        if held is not None:
            detail = f"version 0 cannot be made while version {held.version} of {policy!r} is held"
            raise TrainerRefusal(RefusalCode.OTHER_VERSION, detail)
        settings = self._spec.policies[policy]
        vocabulary = self._family.vocabulary()
        tokenizer = tokenizer_for(self._spec, policy, vocabulary)
        first = beginning_of(self._spec, asked, len(vocabulary), tokenizer, self._shelf(policy))
        check_tokenizer(policy, tokenizer, first.weights)
        learner = self._new_learner(policy, 0, first.weights)
        if first.state is not None:
            learner.restore(first.state)
        facts: dict[str, float] = {"parameters": learner.parameters.size}
        if settings.warmup is not None and not first.taken:
            rng = random.Random(derive(self._spec.seed, "warmup", policy))
            roles = self._spec.roles_of(policy)
            done = warm_up(learner, settings.warmup, self._family, roles, Codec(tokenizer), rng)
            facts |= {"warmup_steps": done.steps, "warmup_seconds": done.seconds}
        stored = self._put_first(policy, learner)
        self._references.take(policy, stored.weights, self._shelf(policy))
        held = self._hold(policy, 0, tokenizer, learner, stored)
        held.created = reply_of(policy, held, created=True, facts=facts)
        return held.created

    def _restore(self, asked: BindRequest) -> BindReply:
        held = self._here(asked.policy)
        if held is not None and (held.version, held.stored.weights) == (asked.version, asked.digest):
            self._empty(held)
            return reply_of(asked.policy, held)
        shelf = self._shelf(asked.policy)
        shelf.settle()
        self._behind.pop(asked.policy, None)
        base = asked.base or asked.digest
        tuning = self._spec.policies[asked.policy].tuning
        if isinstance(tuning, Lora):
            shelf.find_base(base, asked.policy, tuning)
        weights = shelf.weights(base)
        state = shelf.state(asked.state, base) if asked.state else None
        if asked.state and state is None:
            detail = f"training state {asked.state} does not belong to weights {base}"
            raise TrainerRefusal(RefusalCode.STATE, detail)
        learner = self._new_learner(asked.policy, asked.version, weights)
        if state is not None:
            learner.restore(state)
        reference = self._references.take(asked.policy, asked.reference, shelf)
        for step in asked.redo:
            redo(learner, step, shelf, reference)
        self._empty_of(learner, asked.version)
        tokenizer = tokenizer_of(self._spec.policies[asked.policy].model, self._family.vocabulary())
        stored = self._stored_already(asked, learner, shelf)
        held = self._hold(asked.policy, asked.version, tokenizer, learner, stored)
        return reply_of(asked.policy, held)

    def _stored_already(self, asked: BindRequest, learner: Learner, shelf: Shelf) -> Stored:
        """Keep what was restored under the names that the platform knows; store what is new of it."""
        known = Stored(asked.digest, "" if asked.redo else asked.state)
        if not shelf.adopt(known):
            raise StateMissing(asked.digest, "let go of while it was restored")
        if known.state or asked.policy not in self._spec.trainable_policies():
            return known
        return shelf.put_state(asked.digest, learner.training_state())

    def _hold(self, policy: str, version: int, tokenizer: bytes, learner: Learner, stored: Stored) -> Held:
        """Remember a stored version; a frozen policy keeps no learner."""
        trained = policy in self._spec.trainable_policies()
        self._held[policy] = Held(version, stored, tokenizer, learner if trained else None)
        return self._held[policy]

    def _put_first(self, policy: str, learner: Learner) -> Stored:
        """Store version 0."""
        weights, shelf = learner.parameters.named(), self._shelf(policy)
        if policy in self._spec.trainable_policies():
            return shelf.put(weights, learner.training_state())
        return Stored(shelf.put_weights(weights), "")

    def _empty(self, held: Held) -> None:
        if held.learner is not None:
            self._empty_of(held.learner, held.version)

    def _empty_of(self, learner: Learner, version: int) -> None:
        learner.accumulator.open(self._epoch(version))

    def _new_learner(self, policy: str, version: int, weights: "Mapping[str, torch.Tensor]") -> Learner:
        """Return a learner of published weights: a whole model's, or an adapter's over the base on the shelf."""
        self._suspension.give_back()  # memory of another kind of policy would lie beside it
        settings, algorithm = self._spec.policies[policy], self._spec.algorithm
        adapter = None
        if isinstance(settings.tuning, Lora):
            adapter, weights = Adapter(settings.tuning, weights), self._shelf(policy).base()
        return Learner(
            weights,
            architecture_of(settings.model),
            Objective.of(algorithm.loss, algorithm),
            settings.optimizer,
            settings.precision,
            self._device,
            self._epoch(version),
            self._spec.mechanisms.ordered,
            self._intervals.progress.beat,
            adapter,
        )

    def _export(self, policy: str, digest: str) -> Export:
        suspended = self._suspension.get(policy)  # stays where it is: what is exported lies on the shelf
        held = suspended.rest if suspended else self._holding(policy)
        settings, shelf = self._spec.policies[policy], self._shelf(policy)
        weights = shelf.weights(digest)
        if not isinstance(settings.tuning, Lora):
            return Export(policy, settings.model, held.tokenizer, weights)
        return Export(policy, settings.model, held.tokenizer, shelf.base(), Adapter(settings.tuning, weights))

    def _learner(self, policy: str) -> Learner:
        learner = self._holding(policy).learner
        if learner is None:
            raise TrainerRefusal(RefusalCode.NOT_TRAINABLE, f"every agent of policy {policy!r} is frozen")
        return learner

    def _holding(self, policy: str) -> Held:
        held = self._here(policy)
        if held is None:
            raise TrainerRefusal(RefusalCode.NOT_BOUND, f"policy {policy!r} is not held; bind it")
        return held

    def _shelf(self, policy: str) -> Shelf:
        if policy not in self._shelves:
            self._shelves[policy] = Shelf(self._home, self._run_id, policy)
        return self._shelves[policy]

    def _epoch(self, version: int) -> str:
        return f"{version}:{self._incarnation}"


def reply_of(policy: str, held: Held, created: bool = False, facts: dict[str, float] | None = None) -> BindReply:
    """Return what is said of a policy that is held now."""
    return BindReply(
        policy=policy,
        version=held.version,
        digest=held.stored.weights,
        state=held.stored.state,
        created=created,
        tokenizer=held.tokenizer,
        facts=facts or {},
    )


def kind_of(policy: PolicySpec) -> str:
    """Return what policies have in common whose learners can take each other's place."""
    return policy.model_dump_json(include={"model", "tuning", "precision", "optimizer"})


def keep_pace(began: float, seconds: float) -> None:
    """Wait until a declared service time is over."""
    left = began + seconds - time.time()
    if left > 0:
        time.sleep(left)
