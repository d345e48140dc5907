"""Carries out `play_groups`: many episodes at once on one event loop, groups written as they settle.

Invariants. The command's token guards every write, so a stalled worker and its redelivered twin can both play and only
one writes. A draw that is settled already is skipped. Each started group is written exactly once or given up with the
command (token lost, run moved on); nothing is kept between commands but connections and what a run never changes.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import psycopg
import structlog
from psycopg_pool import ConnectionPool

from flexmarl.algorithms.routing import ROUTERS
from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.events import DemandReported
from flexmarl.contracts.spec import ExperimentSpec
from flexmarl.contracts.wire import EpisodeStatus, Origin, PolicyPin
from flexmarl.store import commands, demand, engines, groups, runs, tokenizers
from flexmarl.store.commands import Taken
from flexmarl.store.errors import EpochStale, SamplesAway, StoreFull, TokenLost
from flexmarl.store.segments import SegmentFolder
from workers.rollout.demand import Reporter
from workers.rollout.engine_client import EngineClient
from workers.rollout.episode import Attempt, EpisodeOrder, Seat, play_episode
from workers.rollout.external import ExternalAccess, ExternalClient
from workers.rollout.recorder import settled_group
from workers.rollout.spares import play_with_spares
from workers.rollout.stages import Stage, leave_stage, stage_of
from workers.vocabulary import Codec

log = structlog.get_logger(__name__)

TTL_S = 5.0
"""A command whose worker says nothing for this long may be taken by another one."""
EXTEND_EVERY_S = 1.0
FULL_AGAIN_S = 1.0
"""Pause before groups that a full disk refused are written again."""
GIVE_BACK_TRIES = 5
GIVE_BACK_AGAIN_S = 0.2
RUNS_KEPT = 4
"""Runs whose connections a worker keeps open between commands."""

T = TypeVar("T")


@dataclass(slots=True)
class RunContext:
    """What the commands of one run share in this process."""

    run_id: int
    spec: ExperimentSpec
    stage: Stage
    codecs: dict[str, Codec]
    client: EngineClient
    external: ExternalClient
    reporter: Reporter | None = None
    """Where engines cannot hold every policy."""

    async def close(self) -> None:
        """Drop the connections to whoever answered turns, and what environments played in."""
        if self.reporter is not None:
            await self.reporter.stop()
        await self.client.close()
        await self.external.close()
        await leave_stage(self.stage)


class Player:
    """One per rollout worker process: a small connection pool and the contexts of the runs it plays for."""

    def __init__(
        self,
        pool: ConnectionPool[psycopg.Connection],
        folder: SegmentFolder | None = None,
        holder: str = "",
        access: ExternalAccess | None = None,
    ) -> None:
        self._pool = pool
        self._access = access or ExternalAccess()
        self._folder = folder
        self._holder = holder
        self._contexts: dict[int, RunContext] = {}
        self._opening = asyncio.Lock()

    async def play(self, run_id: int, no: int) -> None:
        """Carry out one command; returns when it is done, failed, or no longer ours."""
        taken = await self._store(lambda conn: commands.take(conn, run_id, no, TTL_S, self._holder))
        if taken is None:
            return
        bound = log.bind(run_id=run_id, command=no)
        work = asyncio.create_task(self._carry_out(taken))
        keep = asyncio.create_task(self._keep(taken, work))
        try:
            await work
        except asyncio.CancelledError:
            # Not ours any more, or the process ends: giving it back does nothing in the first case.
            await self._give_back(taken)
            bound.info("command given up", reason="cancelled")
        except Exception as error:  # the command fails with its reason; the worker goes on with others
            await self._failed(taken, error)
        finally:
            keep.cancel()

    async def _failed(self, taken: Taken, error: Exception) -> None:
        """Say why a command was not carried out. A database that was away is no failure of the command."""
        bound = log.bind(run_id=taken.run_id, command=taken.no)
        causes = _causes(error)
        if all(isinstance(cause, TokenLost | EpochStale) for cause in causes):
            bound.info("command given up", reason=str(causes[0]))
        elif any(isinstance(cause, psycopg.OperationalError) for cause in causes):
            bound.warning("command given back", reason="; ".join(map(str, causes)))
            await self._give_back(taken)
        else:
            bound.error("command failed", exc_info=error)
            message = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
            with contextlib.suppress(TokenLost):
                await self._store(lambda conn: commands.fail(conn, taken, "rollout_error", message, retryable=True))

    async def _give_back(self, taken: Taken) -> None:
        """Give a command back; when the database does not take that, its deadline does it later."""
        for _ in range(GIVE_BACK_TRIES):
            try:
                await self._store(lambda conn: commands.reopen(conn, taken))
                return
            except psycopg.OperationalError as error:
                log.warning("could not give back", run_id=taken.run_id, command=taken.no, error=str(error))
                await asyncio.sleep(GIVE_BACK_AGAIN_S)

    async def close(self) -> None:
        """Drop every connection."""
        for context in self._contexts.values():
            await context.close()
        self._contexts.clear()

    async def _carry_out(self, taken: Taken) -> None:
        order = taken.command
        if not isinstance(order, PlayGroups):
            raise TypeError(f"a rollout worker does not know {order.kind}")
        context = await self._context(taken.run_id)
        settled = await self._store(
            lambda conn: groups.settled_members(conn, taken.run_id, [group.draw for group in order.groups])
        )
        seats = _seats(context, order)
        queue: asyncio.Queue[groups.SettledGroup] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            expected = 0
            for group in order.groups:
                done = settled.get(group.draw, set())
                if order.by_episode:
                    left = [member for member in range(group.members) if member not in done]
                    for member in left:
                        tasks.create_task(_play_alone(taken, order, group, member, seats, context, queue))
                    expected += len(left)
                elif not done:
                    tasks.create_task(_play_group(taken, order, group, seats, context, queue))
                    expected += 1
            tasks.create_task(self._write(taken, queue, expected))
        await self._store(lambda conn: commands.finish(conn, taken))
        if news := context.client.counters.news():
            log.info("turns routed", run_id=taken.run_id, command=taken.no, **news)

    async def _write(self, taken: Taken, queue: "asyncio.Queue[groups.SettledGroup]", expected: int) -> None:
        """Write settled groups as they come: whatever settles during a write goes out with the next one."""
        written = 0
        while written < expected:
            batch = [await queue.get()]
            while not queue.empty():
                batch.append(queue.get_nowait())
            await self._put(taken, batch)
            written += len(batch)

    async def _put(self, taken: Taken, batch: list[groups.SettledGroup]) -> None:
        """Write groups; while the store takes none they wait here, and the command with them, until it does."""
        told = False
        while True:
            try:
                await self._store(partial(groups.put_groups, taken=taken, groups=batch, folder=self._folder))
                return
            except (StoreFull, SamplesAway) as refused:
                if not told:
                    log.error("groups wait for the store", run_id=taken.run_id, command=taken.no, error=str(refused))
                told = True
                await asyncio.sleep(FULL_AGAIN_S)

    async def _keep(self, taken: Taken, work: "asyncio.Task[None]") -> None:
        """Extend the command while it is played; stop the work once it is not ours any more."""
        while True:
            await asyncio.sleep(EXTEND_EVERY_S)
            try:
                extended = await self._store(lambda conn: commands.extend(conn, taken, TTL_S))
            except psycopg.Error as error:
                log.warning("could not extend", run_id=taken.run_id, command=taken.no, error=str(error))
                continue
            if not extended.alive:
                work.cancel()
                return

    async def _context(self, run_id: int) -> RunContext:
        async with self._opening:
            if run_id not in self._contexts:
                self._contexts[run_id] = await self._open(run_id)
                while len(self._contexts) > RUNS_KEPT:
                    oldest = next(iter(self._contexts))
                    await self._contexts.pop(oldest).close()
        return self._contexts[run_id]

    async def _open(self, run_id: int) -> RunContext:
        stored = await self._store(lambda conn: runs.load_spec(conn, run_id))
        spec = ExperimentSpec.model_validate(stored)
        bodies = await self._store(lambda conn: tokenizers.load(conn, run_id))

        async def routes() -> list[engines.EngineRoute]:
            return await self._store(lambda conn: engines.routes(conn, run_id))

        client = EngineClient(routes, ROUTERS.get(spec.mechanisms.router)(), resumes=not spec.mechanisms.ordered)
        return RunContext(
            run_id=run_id,
            spec=spec,
            stage=stage_of(spec.environment),
            codecs={policy: Codec(body) for policy, body in bodies.items()},
            client=client,
            external=ExternalClient(self._access),
            reporter=self._reporter(run_id, client) if spec.resources.has_places(len(spec.policies)) else None,
        )

    def _reporter(self, run_id: int, client: EngineClient) -> Reporter:
        async def put(number: int, event: DemandReported) -> bool:
            return await self._store(lambda conn: demand.report(conn, run_id, number, event))

        return Reporter(f"{self._holder}-{secrets.token_hex(4)}", client.counters.demand, client.depths, put)

    async def _store(self, call: Callable[[psycopg.Connection], T]) -> T:
        """Run one store function on a pooled connection, off the event loop."""

        def work() -> T:
            with self._pool.connection() as conn:
                return call(conn)

        return await asyncio.to_thread(work)


def _causes(error: BaseException) -> list[BaseException]:
    """Return what went wrong, taken out of the groups that tasks wrap it in."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for inner in error.exceptions for cause in _causes(inner)]
    return [error]


def _seats(context: RunContext, order: PlayGroups) -> dict[str, Seat]:
    """Seat every role with the exact weights that the command pins."""
    spec, seats = context.spec, {}
    for role, agent in spec.agents.items():
        policy = spec.policy_of(role)
        known = agent.external is None
        seats[role] = Seat(
            policy=policy,
            pin=order.pins[policy] if known else PolicyPin(version=0, digest=""),
            codec=context.codecs[policy] if known else context.codecs[min(context.codecs)],
            external=agent.external,
            max_tokens=agent.sampling.max_tokens,
            temperature=0.0 if order.greedy else agent.sampling.temperature,
            follow=order.follows.get(policy, ""),
        )
    return seats


async def _play_group(
    taken: Taken,
    order: PlayGroups,
    group: GroupOrder,
    seats: dict[str, Seat],
    context: RunContext,
    queue: "asyncio.Queue[groups.SettledGroup]",
) -> None:
    async with asyncio.TaskGroup() as tasks:
        playing = [
            tasks.create_task(_play_member(taken, order, group, member, seats, context))
            for member in range(group.members)
        ]
        if group.enough:
            await _until_enough(playing, group.enough)
        if group.spares:
            again = partial(_play_again, taken, order, group, seats, context)
            queue.put_nowait(
                settled_group(order, taken.no, await play_with_spares(playing, group.spares, again), seats)
            )
            return
    attempts = [
        _cancelled(taken, order, group, member, context) if task.cancelled() else task.result()
        for member, task in enumerate(playing)
    ]
    queue.put_nowait(settled_group(order, taken.no, attempts, seats))


async def _play_again(
    taken: Taken, order: PlayGroups, group: GroupOrder, seats: dict[str, Seat], context: RunContext, member: int
) -> Attempt:
    """Play a member in a second environment, whose attempts are numbered behind those of the first."""
    return await _play_member(taken, order, group, member, seats, context, context.spec.batch.max_attempts)


async def _play_alone(
    taken: Taken,
    order: PlayGroups,
    group: GroupOrder,
    member: int,
    seats: dict[str, Seat],
    context: RunContext,
    queue: "asyncio.Queue[groups.SettledGroup]",
) -> None:
    """Play one member of a group, and settle it as soon as it ends."""
    attempt = await _play_member(taken, order, group, member, seats, context)
    queue.put_nowait(settled_group(order, taken.no, [attempt], seats))


async def _until_enough(playing: "list[asyncio.Task[Attempt]]", enough: int) -> None:
    """Cancel the members that still play once enough of them have finished."""
    waiting = set(playing)
    finished = 0
    while waiting and finished < enough:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finished += sum(task.result().status is EpisodeStatus.FINISHED for task in done)
    for task in waiting:
        task.cancel()


def _cancelled(taken: Taken, order: PlayGroups, group: GroupOrder, member: int, context: RunContext) -> Attempt:
    """Record a member that its group did not need."""
    now = time.time()
    reason = f"rollout: {group.enough} members of its group had finished"
    episode = _episode(taken, order, group, member, context, 1, 0)
    return Attempt(episode, EpisodeStatus.CANCELLED, reason, started_at=now, finished_at=now)


def _episode(
    taken: Taken, order: PlayGroups, group: GroupOrder, member: int, context: RunContext, tried: int, breakdowns: int
) -> EpisodeOrder:
    batch = context.spec.batch
    environments = 2 if group.spares else 1
    return EpisodeOrder(
        draw=group.draw,
        member=member,
        attempt=(taken.takes - 1) * batch.max_attempts * environments + tried,
        task_seed=group.task_seed,
        held_out=order.origin is Origin.EVAL,
        sampling_seed=order.sampling_seed,
        timeout_s=batch.episode_timeout_s,
        weights_timeout_s=batch.weights_timeout_s,
        latency=context.spec.environment.latency,
        breakdowns=breakdowns,
    )


async def _play_member(
    taken: Taken,
    order: PlayGroups,
    group: GroupOrder,
    member: int,
    seats: dict[str, Seat],
    context: RunContext,
    before: int = 0,
) -> Attempt:
    """Try an episode until an attempt finishes or the attempts are used up; they are numbered behind `before`."""
    batch = context.spec.batch
    attempt, breakdowns = None, 0
    for tried in range(1, batch.max_attempts + 1):
        episode = _episode(taken, order, group, member, context, before + tried, breakdowns)
        attempt = await play_episode(episode, context.stage, seats, context.client, context.external)
        if attempt.status is EpisodeStatus.FINISHED:
            return attempt
        breakdowns += attempt.broke
        log.warning("attempt failed", run_id=taken.run_id, draw=group.draw, member=member, reason=attempt.reason)
    assert attempt is not None
    return attempt
