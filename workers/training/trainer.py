"""The verbs of a trainer process, for all policies of a run: bind, accumulate, step, checkpoint. Synchronous.

Invariants. The weights of a version a reply names are durable in the state plane before the reply exists, and so is the
training state that it names; a version without one is restored by redoing the committed steps behind the last that has
one, which makes no version anew. Each verb may be asked again
with the same words and answers the same without doing it twice. When storing a step fails, the policy is no longer
held: memory is never ahead of what the platform can restore. Accumulator epochs are `<version>:<incarnation>`, so
nothing meant for an earlier life or version is ever taken in.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from flexmarl.contracts.specification.experiment import ExperimentSpec
from workers.child import IntervalLog
from workers.memory import give_back
from workers.models import UnsupportedModel
from workers.models.adapter import WrongAdapterError
from workers.models.tokenizer import Spoken
from workers.training.beginning import beginning_of
from workers.training.checkpoints import write_checkpoint
from workers.training.checks import check_tokenizer
from workers.training.conversations import demonstrations_of
from workers.training.errors import RefusalCode, TrainerRefusal, refusal_of
from workers.training.folders import root_of
from workers.training.gangs.membership import Gangs
from workers.training.held_policy import HeldPolicy, cpu_of, keep_pace, reply_of, rest_of
from workers.training.learner import Learner
from workers.training.making import Making, kind_of
from workers.training.reference import References
from workers.training.suspending import Suspended, Suspension, plane_of
from workers.training.taken import content_of, redo
from workers.training.version_store import StoredVersion, VersionStore
from workers.training.warmup import warm_up
from workers.training.wire import (
    AccumulateReply,
    AccumulateRequest,
    BindReply,
    BindRequest,
    CheckpointReply,
    CheckpointRequest,
    JoinReply,
    JoinRequest,
    StepReply,
    StepRequest,
    SuspendReply,
    SuspendRequest,
    VacateReply,
    VacateRequest,
)
from workers.transfer import StateError, StateMissing

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]

log = structlog.get_logger(__name__)

CREATE = -1
"""Version of a bind request that asks for version 0 to be made."""


class Trainer:
    def __init__(
        self, spec: ExperimentSpec, run_id: int, incarnation: str, home: str, device: str, intervals: IntervalLog
    ) -> None:
        self._spec = spec
        self._run_id = run_id
        self._incarnation = incarnation
        self._home = home
        self._intervals = intervals
        self._making = Making(spec, run_id, home, device, intervals.progress.beat)
        self._held: dict[str, HeldPolicy] = {}
        self._suspension = Suspension(partial(plane_of, home, run_id, incarnation))
        self._references = References(spec, device, self._making.bases)
        self.gangs = Gangs(spec, device, intervals)
        self._behind: dict[str, dict[int, str]] = {}
        """Policy -> version whose training state is being written, with its digest."""

    def bind(self, asked: BindRequest) -> BindReply:
        """Hold a policy: made new, restored, or as it is; its accumulator is empty afterwards."""
        if asked.policy not in self._spec.policies:
            raise TrainerRefusal(RefusalCode.NOT_BOUND, f"the run has no policy {asked.policy!r}")
        self._suspension.refuse_older(asked.order)
        began = time.time()
        if not self.gangs.fit(asked):
            self._held.pop(asked.policy, None)
            self.gangs.leave(asked.policy)
        try:
            if asked.resume:
                return self._resume(asked)
            reply = self._create(asked) if asked.version == CREATE else self._restore(asked)
        except StateError as error:
            raise refusal_of(error) from error
        except (UnsupportedModel, FileNotFoundError) as error:
            raise TrainerRefusal(RefusalCode.UNSUPPORTED_MODEL, str(error)) from error
        except WrongAdapterError as error:
            raise TrainerRefusal(RefusalCode.WRONG_ADAPTER, str(error)) from error
        self._intervals.add("bind", asked.policy, began, time.time())
        return reply

    def join(self, asked: JoinRequest) -> JoinReply:
        """Become a further rank of a policy's gang; what is held of the policy alone is let go."""
        self._held.pop(asked.policy, None)
        return self.gangs.join(asked)

    def accumulate(self, asked: AccumulateRequest) -> AccumulateReply:
        """Add a micro-batch's gradient to the policy's accumulator."""
        learner, held = self._learner(asked.policy), self._holding(asked.policy)
        replies = self._making.replies(asked.policy, held.tokenizer).know(asked.grammars) if asked.grammars else None
        began, worked, is_in = time.time(), time.process_time(), asked.micro_batch in learner.accumulator.micro_batches
        stats = learner.accumulate(
            asked.accumulator, asked.micro_batch, content_of(asked.rows), asked.rows, asked.entropy_coef, held.version,
            self._references.get(asked.policy), asked.proximal, replies,
        )  # fmt: skip
        pace, ranks = self._spec.resources.pace, self.gangs.size(asked.policy)
        if is_in:  # for a gang of another size, maybe: how long it took then would mislead whoever reckons by it
            return AccumulateReply({**stats.model_dump(), "seconds": 0.0})
        keep_pace(began, pace.micro_batch_s + pace.row_s * -(-len(asked.rows) // ranks))
        ended, cpu = time.time(), cpu_of(pace, ranks, worked)
        self._intervals.add("train", asked.policy, began, ended, stats.tokens, cpu=cpu)
        return AccumulateReply({**stats.model_dump(), "seconds": ended - began})

    def step(self, asked: StepRequest) -> StepReply:
        """Step on exactly the named micro-batches and store the next version."""
        held = self._holding(asked.policy)
        key = (asked.accumulator, tuple(sorted(asked.micro_batches)), asked.next_version)
        if key in held.stepped:
            return held.stepped[key]
        learner = self._learner(asked.policy)
        learner.accumulator.check_exactly(asked.accumulator, tuple(asked.micro_batches))
        if asked.next_version != held.version + 1:
            detail = f"version {asked.next_version} requested, but {held.version + 1} is next"
            raise TrainerRefusal(RefusalCode.OTHER_VERSION, detail, learner.accumulator.epoch)
        began = time.time()
        _written(self._making.store(asked.policy), self._held, asked.policy)
        learned = learner.step(asked.learning_rate)
        keep_pace(began, self._spec.resources.pace.step_s)
        del self._held[asked.policy]  # held again once the new version is stored
        try:
            stored = self._making.keep(asked.policy, asked.next_version, learner)
            if self._references.begins(asked.next_version):
                near = self._references.after(asked.policy, asked.next_version, stored.weights)
                self._refer(asked.policy, near, asked.next_version, learner)
        except StateError as error:  # the disk is full: the step is taken again once the policy is bound
            raise refusal_of(error) from error
        durable = {}
        if self._spec.mechanisms.durability.type == "async":
            durable, self._behind[asked.policy] = self._behind.get(asked.policy, {}), {asked.next_version: stored.state}
            stored = StoredVersion(stored.weights, "")
        ended = time.time()
        reply = StepReply(
            version=asked.next_version, digest=stored.weights, state=stored.state, null_step=learned.null_step,
            grad_norm=learned.grad_norm, seconds=ended - began, durable=durable,
        )  # fmt: skip
        learner.accumulator.open(self._epoch(asked.next_version))
        self._held[asked.policy] = HeldPolicy(asked.next_version, stored, held.tokenizer, learner, stepped={key: reply})
        self._intervals.add("step", asked.policy, began, ended)
        return reply

    def suspend(self, asked: SuspendRequest) -> SuspendReply:
        """Take a policy off the device, accumulator and all; asked again, answer the same without doing it twice."""
        known = self._suspension.get(asked.policy)
        if known is not None and asked.policy not in self._held and known.accumulator == asked.accumulator:
            return SuspendReply(known.ticket, known.bytes, known.seconds)
        learner, held, began = self._learner(asked.policy), self._holding(asked.policy), time.time()
        learner.accumulator.check_epoch(asked.accumulator)
        rest = rest_of(held, self._behind.get(asked.policy, {}))
        try:
            self._making.store(asked.policy).settle()
            done = self._suspension.suspend(asked.policy, learner, self._kind(asked.policy), rest, asked.reach)
        except StateError as error:
            raise refusal_of(error) from error
        self._making.close_shelf(asked.policy)
        self._behind.pop(asked.policy, None)
        del self._held[asked.policy]
        self.gangs.leave(asked.policy)
        self._intervals.add("suspend", asked.policy, began, time.time(), bytes=done.bytes)
        return SuspendReply(done.ticket, done.bytes, done.seconds)

    def vacate(self, asked: VacateRequest) -> VacateReply:
        """Keep nothing on the device; policies that lie suspended elsewhere stay so."""
        for policy in (left := [policy for policy, held in self._held.items() if held.learner is not None]):
            self.let_go(policy)
        self.gangs.rest()
        self._suspension.vacate(asked.order)
        self._references.clear()
        give_back(self._making.device)
        return VacateReply(left)

    def _resume(self, asked: BindRequest) -> BindReply:
        """Take a policy up where a trainer of this run suspended it, this one or another."""
        held, began = self._held.get(asked.policy), time.time()
        if held is not None and held.resumed is not None and held.resumed[0] == asked.resume:
            return held.resumed[1]
        store = self._making.store(asked.policy)
        self._making.find_base(asked.policy, asked.digest)
        make = partial(self._making.learner, asked.policy, self._epoch(asked.version))
        if asked.gang:
            make = partial(self._led, asked, asked.references, asked.version)
        back: Suspended = self._suspension.resume(asked.resume, self._kind(asked.policy, bool(asked.gang)), make)
        stored = StoredVersion(back.rest["weights"], back.rest["state"])
        if (back.rest["version"], stored.weights) != (asked.version, asked.digest) or not store.adopt(stored):
            raise TrainerRefusal(RefusalCode.STATE, f"what was suspended is version {back.rest['version']}")
        back.learner.accumulator.go_on_as(asked.accumulator, self._epoch(asked.version))
        self._refer(asked.policy, asked.references, asked.version, back.learner)
        if behind := {int(version): state for version, state in back.rest["behind"].items()}:
            self._behind[asked.policy] = behind
        held = self._hold(asked.policy, asked.version, self._making.spoken(asked.policy), back.learner, stored)
        ended = time.time()
        self._intervals.add("resume", asked.policy, began, ended, bytes=back.bytes)
        reply = reply_of(asked.policy, held)
        reply.resumed, reply.bytes, reply.seconds = True, back.bytes, ended - began
        held.resumed = asked.resume, reply
        return reply

    def checkpoint(self, asked: CheckpointRequest) -> CheckpointReply:
        """Export the named versions, which need not be the newest."""
        began = time.time()
        label = f"step-{asked.step}"
        about = {"run": self._run_id, "step": asked.step, "versions": asked.versions, "digests": asked.digests}
        exports = (self._making.export(*pair) for pair in asked.digests.items())
        try:
            written = write_checkpoint(root_of(self._home, self._run_id), label, about, exports)
            states = {one: self._making.store(one).hold(digest, label) for one, digest in asked.digests.items()}
        except StateError as error:
            raise refusal_of(error) from error
        for policy in asked.digests.keys() - self._held.keys():
            self._making.close_shelf(policy)
        self._intervals.add("checkpoint", "", began, time.time())
        return CheckpointReply(written.path, written.bytes, states)

    def let_go(self, policy: str) -> None:
        """Hold a policy no more, if it is held: what broke off in the middle is restored from what is on disk."""
        self._held.pop(policy, None)
        self._suspension.forget(policy)
        self.gangs.leave(policy)

    def settle(self) -> None:
        """Wait until nothing is being removed from the state plane any more."""
        self._making.settle()

    def _create(self, asked: BindRequest) -> BindReply:
        policy, held = asked.policy, self._held.get(asked.policy)
        if held is not None and held.created is not None:
            self._empty(held)
            return held.created
        if held is not None:
            detail = f"version 0 cannot be made while version {held.version} of {policy!r} is held"
            raise TrainerRefusal(RefusalCode.OTHER_VERSION, detail)
        settings = self._spec.policies[policy]
        spoken = self._making.spoken(policy)
        first = beginning_of(self._spec, asked, self._making.words, spoken.tokenizer, self._making.store(policy))
        check_tokenizer(policy, spoken.tokenizer, first.weights)
        learner = self._new_learner(policy, 0, first.weights)
        if first.state is not None:
            learner.restore(first.state)
        facts: dict[str, float] = {"parameters": learner.parameters.size}
        if settings.warmup is not None and not first.taken:
            facts |= warm_up(
                learner,
                settings.warmup,
                demonstrations_of(self._spec, policy, spoken, self._making.family, asked.demonstrations),
            )
        stored = self._making.put_first(policy, learner)
        if asked.gang:  # one trainer makes the version, so that it is the same for any number of ranks
            learner = self._led(asked, [stored.weights], 0, learner.parameters.named())
            if first.state is not None:
                learner.restore(first.state)
        else:
            self._references.take(policy, [stored.weights], 0, self._making.store(policy))
        held = self._hold(policy, 0, spoken, learner, stored)
        held.created = reply_of(policy, held, created=True, facts=facts)
        return held.created

    def _restore(self, asked: BindRequest) -> BindReply:
        held = self._held.get(asked.policy)
        if held is not None and (held.version, held.stored.weights) == (asked.version, asked.digest):
            self._empty(held)
            return reply_of(asked.policy, held)
        store = self._making.store(asked.policy)
        store.settle()
        self._behind.pop(asked.policy, None)
        base = asked.base or asked.digest
        self._making.find_base(asked.policy, base)
        weights = store.weights(base)
        state = store.state(asked.state, base) if asked.state else None
        if asked.state and state is None:
            detail = f"training state {asked.state} does not belong to weights {base}"
            raise TrainerRefusal(RefusalCode.STATE, detail)
        compared = [*((step.references, step.version - 1) for step in asked.redo), (asked.references, asked.version)]
        if asked.gang:
            learner = self._led(asked, *compared[0], weights)
        else:
            learner = self._new_learner(asked.policy, asked.version, weights)
        if state is not None:
            learner.restore(state)
        for step, near in zip(asked.redo, compared, strict=False):
            self._refer(asked.policy, *near, learner)
            redo(learner, step, store, self._references.get(asked.policy), partial(self._making.replies, asked.policy))
        self._refer(asked.policy, *compared[-1], learner)
        learner.accumulator.open(self._epoch(asked.version))
        stored = self._stored_already(asked, learner, store)
        held = self._hold(asked.policy, asked.version, self._making.spoken(asked.policy), learner, stored)
        return reply_of(asked.policy, held)

    def _stored_already(self, asked: BindRequest, learner: Learner, store: VersionStore) -> StoredVersion:
        """Keep what was restored under the names that the platform knows; store what is new of it."""
        known = StoredVersion(asked.digest, "" if asked.redo else asked.state)
        if not store.adopt(known):
            raise StateMissing(asked.digest, "released while it was being restored")
        if known.state or asked.policy not in self._spec.trainable_policies():
            return known
        return store.put_state(asked.digest, learner.training_state())

    def _hold(self, policy: str, version: int, spoken: Spoken, learner: Learner, stored: StoredVersion) -> HeldPolicy:
        """Remember a stored version; a frozen policy keeps no learner."""
        trained = policy in self._spec.trainable_policies()
        self._held[policy] = HeldPolicy(version, stored, spoken, learner if trained else None)
        return self._held[policy]

    def _empty(self, held: HeldPolicy) -> None:
        if held.learner is not None:
            held.learner.accumulator.open(self._epoch(held.version))

    def _new_learner(self, policy: str, version: int, weights: "Weights") -> Learner:
        self._suspension.give_back()  # memory of another kind of policy would lie beside it
        return self._making.learner(policy, self._epoch(version), weights)

    def _refer(self, policy: str, digests: Sequence[str], version: int, learner: Learner) -> None:
        """Compare a version with what lies under digests from now on. Raises StateError when it cannot be had."""
        store = self._making.store(policy)
        if not self.gangs.leads(policy):
            self._references.take(policy, digests, version, store)
        elif not self._references.shared_already(policy, digests, version):
            self.gangs.refer(learner, self._references.shared(policy, digests, version, store))

    def _led(self, asked: BindRequest, near: Sequence[str], version: int, weights: "Weights") -> Learner:
        """Return the learner of a gang that this trainer leads; `near` is what the version is compared with."""
        self._suspension.give_back()
        reference = self._references.shared(asked.policy, near, version, self._making.store(asked.policy))
        replies = self._making.replies(asked.policy)
        return self.gangs.lead(asked, self._epoch(max(asked.version, 0)), weights, reference, replies.tokenizer)

    def _kind(self, policy: str, led: bool = False) -> str:
        """Return what learners must have in common to take each other's place; one of a gang takes nobody's."""
        return "" if led or self.gangs.leads(policy) else kind_of(self._spec.policies[policy])

    def _learner(self, policy: str) -> Learner:
        learner = self._holding(policy).learner
        if learner is None:
            raise TrainerRefusal(RefusalCode.NOT_TRAINABLE, f"every agent of policy {policy!r} is frozen")
        return learner

    def _holding(self, policy: str) -> HeldPolicy:
        held = self._held.get(policy)
        if held is None:
            raise TrainerRefusal(RefusalCode.NOT_BOUND, f"policy {policy!r} is not held; bind it")
        return held

    def _epoch(self, version: int) -> str:
        return f"{version}:{self._incarnation}"


def _written(store: VersionStore, held: dict[str, HeldPolicy], policy: str) -> None:
    """Wait until nothing is written any more out of the memory that a step moves."""
    unwritten = held.pop(policy)  # should that fail, the version has no training state, though one was promised
    try:
        store.settle()
    except StateError as error:
        raise refusal_of(error) from error
    held[policy] = unwritten
