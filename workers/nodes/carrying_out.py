"""What each node-routed command means: a request to the child, and a store function for its reply.

Invariants: `prepare` reads and changes nothing, but that the registry names an engine no more for what it is to forget,
since that comes before the engine is asked; `perform` only speaks to the child; `commit` writes rows, event and the
command's end in one transaction. Figures that are no numbers never reach an event: the command fails instead.
"""

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg

from flexmarl.contracts.commands import (
    COMMAND_KINDS,
    Accumulate,
    BindPolicy,
    JoinGang,
    LoadWeights,
    OptimizerStep,
    SleepEngine,
    UnloadPolicy,
    WakeEngine,
    WriteCheckpoint,
)
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.wire import TrainStats
from flexmarl.store.control import engines, leases, runs
from flexmarl.store.control.commands import Taken
from flexmarl.store.data import checkpoints, lineage, micro_batches, steps, tokenizers
from flexmarl.store.data.micro_batches import MicroBatch, MicroBatchRow
from flexmarl.store.errors import Refused
from workers.errors import ChildRefused
from workers.nodes import turns
from workers.nodes.child_client import ChildClient
from workers.rollout.engines.wire import LoadRequest, UnloadRequest
from workers.training.wire import (
    VERBS,
    AccumulateReply,
    AccumulateRequest,
    BindReply,
    BindRequest,
    CheckpointReply,
    CheckpointRequest,
    JoinRequest,
    RedoBatch,
    RedoStep,
    StepReply,
    StepRequest,
    TrainerVerb,
    TrainRow,
    rendezvous_key,
)

Commit = Callable[[psycopg.Connection], None]
Publish = Callable[[Taken, msgspec.Struct], Awaitable[msgspec.Struct]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A taken command with the request that goes to the child."""

    taken: Taken
    request: msgspec.Struct
    more: bool = False
    """Another command of the child was open behind it."""


def prepare(conn: psycopg.Connection, taken: Taken, batch: MicroBatch | None = None) -> Prepared:
    """Read what the request needs, but rows that were read already. Raises Refused when the store does not have it."""
    match taken.command:
        case BindPolicy() as order:
            bind = _bind_request(conn, taken.run_id, order)
            return Prepared(taken, msgspec.structs.replace(bind, order=taken.no))
        case JoinGang() as order:
            return Prepared(taken, _join_request(conn, taken.run_id, order))
        case Accumulate() as order:
            batch = batch or micro_batches.read(conn, taken.run_id, order.policy, order.micro_batch)
            return Prepared(
                taken,
                AccumulateRequest(
                    order.policy, order.accumulator, order.micro_batch, order.entropy_coef, *_taken_in(batch)
                ),
            )
        case OptimizerStep() as order:
            numbers = list(order.micro_batches)
            return Prepared(
                taken,
                StepRequest(order.policy, order.accumulator, numbers, order.next_version, order.learning_rate),
            )
        case LoadWeights() as order:
            spoken = tokenizers.digest(conn, taken.run_id, order.policy)
            keeps = list(order.keeps)
            return Prepared(taken, LoadRequest(order.policy, order.version, order.digest, keeps, taken.no, spoken))
        case UnloadPolicy() as order:
            engines.leaves(conn, taken, order.lease_id, order.policy)
            return Prepared(taken, UnloadRequest(order.policy, order.hand_over, taken.no, order.to))
        case SleepEngine() | WakeEngine() as order:
            return Prepared(taken, turns.request_of(conn, taken, order))
        case WriteCheckpoint() as order:
            versions = {policy: pin.version for policy, pin in order.pins.items()}
            digests = {policy: pin.digest for policy, pin in order.pins.items()}
            return Prepared(taken, CheckpointRequest(order.label, order.step, versions, digests))
        case other if other.kind in VERBS:
            return Prepared(taken, _plain_request(VERBS[other.kind], taken))
        case other:
            raise Refused("unknown_command", f"a node does not carry out {other.kind}")


async def stays_here(taken: Taken, reply: msgspec.Struct) -> msgspec.Struct:
    """Publish nothing: whoever needs what a trainer here made reads it from this node."""
    return reply


async def perform(client: ChildClient, prepared: Prepared, publish: Publish = stays_here) -> Commit:
    """Let the child do it; returns the write that makes it count. Raises ChildRefused, ChildUnreachable.

    What a trainer made is published before anybody is told of it.
    """
    taken, command, request = prepared.taken, prepared.taken.command, prepared.request
    verb = VERBS.get(command.kind)
    if verb is not None:
        reply = await client.train(verb.name, request, verb.reply)
        return _trained(client, taken, await publish(taken, reply))
    began = time.monotonic()
    match command:
        case LoadWeights():
            assert isinstance(request, LoadRequest)
            await client.load(request)
            return _commit_load(client, taken, command, time.monotonic() - began)
        case UnloadPolicy():
            assert isinstance(request, UnloadRequest)
            await client.unload(request)
            return _commit_unload(client, taken, command, time.monotonic() - began)
        case SleepEngine() | WakeEngine():
            return await turns.perform(client, taken, command, request)
        case other:
            raise ChildRefused("unknown_command", f"a node does not carry out {other.kind}")


def _trained(client: ChildClient, taken: Taken, reply: msgspec.Struct) -> Commit:
    """Return the write that makes a trainer's reply count."""
    match taken.command, reply:
        case BindPolicy() as command, BindReply():
            return _commit_bind(client, taken, command, reply)
        case Accumulate() as command, AccumulateReply():
            return _commit_accumulate(taken, command, reply)
        case OptimizerStep() as command, StepReply():
            return _commit_step(taken, command, reply)
        case WriteCheckpoint() as command, CheckpointReply():
            return _commit_checkpoint(taken, command, reply)
    return _commit_answer(client, taken, reply)


def _plain_request(verb: TrainerVerb, taken: Taken) -> msgspec.Struct:
    """Make a request that says what its command says."""
    said = {**dict(taken.command), "order": taken.no}
    return verb.request(**{name: said[name] for name in verb.request.__struct_fields__ if name in said})


def _first_bind(conn: psycopg.Connection, run_id: int, order: BindPolicy) -> BindRequest:
    """Read what version 0 is made of: the policy's model source, or another run's version that may be read now."""
    request = BindRequest(order.policy, gang=list(order.gang), meeting=order.meeting)
    origin = lineage.readable(conn, run_id, order.policy)
    if origin is None:
        return request
    spoken = tokenizers.digest(conn, origin.from_run, origin.from_policy)
    return msgspec.structs.replace(request, digest=origin.digest, state=origin.state, tokenizer=spoken)


def _bind_request(conn: psycopg.Connection, run_id: int, order: BindPolicy) -> BindRequest:
    """Read what restores a version: its training state, or the last one before it and the steps from there."""
    policy, version, gang, meeting = order.policy, order.version, list(order.gang), order.meeting
    if version is None:
        return _first_bind(conn, run_id, order)
    if order.resume:
        return _resume_request(conn, run_id, order, version)
    base, behind = steps.steps_behind_state(conn, run_id, policy, version)
    near = _references(conn, run_id, policy)
    if not behind:
        return BindRequest(
            policy, version, base.digest, base.state, references=near(version), gang=gang, meeting=meeting
        )
    redo = [
        RedoStep(step.version, step.digest, step.learning_rate, [
            RedoBatch(no, entropy, *_taken_in(micro_batches.read(conn, run_id, policy, no)))
            for no, entropy in step.micro_batches.items()
        ], near(step.version - 1))
        for step in behind
    ]  # fmt: skip
    return BindRequest(
        policy, version, behind[-1].digest, base.state, base.digest, redo, near(version), gang=gang, meeting=meeting
    )


def _references(conn: psycopg.Connection, run_id: int, policy: str) -> Callable[[int], list[str]]:
    """Return by what digests to know the versions that one is compared with."""
    algorithm = AlgorithmSpec.model_validate(runs.load_spec(conn, run_id).get("algorithm", {}))
    return lambda version: [
        steps.version_of(conn, run_id, policy, number).digest for number in algorithm.compared_with(version)
    ]


def _join_request(conn: psycopg.Connection, run_id: int, order: JoinGang) -> JoinRequest:
    """Look up where the leader's ranks meet. Raises Refused while no child of its lease answers."""
    leader = leases.endpoint(conn, order.gang[0])
    if leader is None or leader.run_id != run_id or not leader.rendezvous:
        raise Refused("gang_incomplete", f"the leader of {order.policy}'s gang, lease {order.gang[0]}, does not answer")
    return JoinRequest(
        policy=order.policy, rank=order.gang.index(order.lease_id), ranks=len(order.gang), meeting=order.meeting,
        leader=leader.rendezvous, key=rendezvous_key(leader.secret, order.policy, order.meeting),
    )  # fmt: skip


def _resume_request(conn: psycopg.Connection, run_id: int, order: BindPolicy, version: int) -> BindRequest:
    """Read what a suspended policy is checked against; what it consists of lies in the state plane."""
    own = steps.version_of(conn, run_id, order.policy, version)
    near = _references(conn, run_id, order.policy)(version)
    return BindRequest(
        order.policy, version, own.digest, own.state, references=near, resume=order.resume,
        accumulator=order.accumulator, gang=list(order.gang), meeting=order.meeting,
    )  # fmt: skip


def _taken_in(batch: MicroBatch) -> tuple[list[TrainRow], int, dict[str, str]]:
    """Return a micro-batch's rows, the version that the first step on their cohort began with, and their grammars."""
    return [_train_row(row) for row in batch.rows], -1 if batch.proximal is None else batch.proximal, batch.grammars


def _train_row(row: MicroBatchRow) -> TrainRow:
    arrays = row.arrays
    return TrainRow(
        arrays.prompt, arrays.response, arrays.logprobs, arrays.allowed, row.temperature, row.advantages, row.weight,
        row.segments, f"{row.draw}:{row.role}", row.member, row.turn, row.spans, row.offsets, row.grammars,
        row.steps,
    )  # fmt: skip


def _commit_bind(client: ChildClient, taken: Taken, command: BindPolicy, reply: BindReply) -> Commit:
    _finite("bind", reply.facts)
    bind = steps.BoundState(
        lease_id=command.lease_id, incarnation=client.child.incarnation, policy=reply.policy, version=reply.version,
        digest=reply.digest, state=reply.state, created=reply.created, tokenizer=reply.tokenizer, chat=reply.chat,
        facts=reply.facts, resumed=reply.resumed, accumulator=command.accumulator,
        bytes=reply.bytes, seconds=reply.seconds,
    )  # fmt: skip
    return lambda conn: steps.commit_bind(conn, taken, bind)


def _commit_answer(client: ChildClient, taken: Taken, reply: msgspec.Struct) -> Commit:
    incarnation, lease_id = client.child.incarnation, client.child.lease_id
    said = msgspec.structs.asdict(reply) | {"incarnation": incarnation, "command_no": taken.no}
    event = COMMAND_KINDS[taken.command.kind].answered(taken.command, **said)
    return lambda conn: steps.commit_answer(conn, taken, lease_id, incarnation, event)


def _commit_accumulate(taken: Taken, command: Accumulate, reply: AccumulateReply) -> Commit:
    _finite("accumulate", reply.stats)
    stats = TrainStats.model_validate(reply.stats)
    return lambda conn: micro_batches.accumulated(
        conn, taken, command.policy, command.micro_batch, accumulator=command.accumulator, stats=stats
    )


def _commit_step(taken: Taken, command: OptimizerStep, reply: StepReply) -> Commit:
    _finite("step", {"grad_norm": reply.grad_norm, "seconds": reply.seconds})
    step = steps.StepRow(
        lease_id=command.lease_id, policy=command.policy, accumulator=command.accumulator,
        micro_batches=command.micro_batches, version=reply.version, digest=reply.digest, state=reply.state,
        null_step=reply.null_step, grad_norm=reply.grad_norm, learning_rate=command.learning_rate,
        seconds=reply.seconds, durable=reply.durable,
    )  # fmt: skip
    return lambda conn: steps.commit_step(conn, taken, step)


def _commit_load(client: ChildClient, taken: Taken, command: LoadWeights, seconds: float) -> Commit:
    lease_id, incarnation = command.lease_id, client.child.incarnation
    return lambda conn: engines.served(
        conn, taken, lease_id, incarnation, policy=command.policy, version=command.version, digest=command.digest,
        keeps=command.keeps, seconds=seconds,
    )  # fmt: skip


def _commit_unload(client: ChildClient, taken: Taken, command: UnloadPolicy, seconds: float) -> Commit:
    incarnation = client.child.incarnation
    return lambda conn: engines.unloaded(conn, taken, command.lease_id, incarnation, command.policy, seconds)


def _commit_checkpoint(taken: Taken, command: WriteCheckpoint, reply: CheckpointReply) -> Commit:
    versions = {policy: pin.version for policy, pin in command.pins.items()}
    parts = {
        policy: {"version": pin.version, "digest": pin.digest, "state": reply.states.get(policy, "")}
        for policy, pin in command.pins.items()
    }
    row = checkpoints.CheckpointRow(
        command.label, command.step, versions, reply.path, reply.bytes, parts, kept_on=reply.kept_on
    )
    return lambda conn: checkpoints.written(conn, taken, row)


def _finite(verb: str, figures: dict[str, Any]) -> None:
    """Raise ChildRefused when a figure is not a finite number."""
    wrong = {name: str(value) for name, value in figures.items() if not math.isfinite(value)}
    if wrong:
        raise ChildRefused("nonfinite", f"{verb} returned {wrong}", 422)
