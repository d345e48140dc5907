"""Carries out `play_groups`: many episodes at once on one event loop, groups written as they settle.

Invariants. The command's token guards every write, so a stalled worker and its redelivered twin can both play and only
one writes. A draw that is settled already is skipped. Each started group is written exactly once or given up with the
command (token lost, run moved on); nothing is kept between commands but connections and what a run never changes.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import psycopg
import structlog

from flexmarl.algorithms.routing import ROUTERS
from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.events import DemandReported
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.commands import CommandRunner
from flexmarl.contracts.specification.dataset import NamedDataset
from flexmarl.contracts.specification.environment import EnvironmentSpec
from flexmarl.contracts.specification.nemo_gym import NemoGymUrl
from flexmarl.contracts.specification.openenv import OpenEnvUrl
from flexmarl.contracts.specification.package import PackageEnvironment
from flexmarl.contracts.specification.program import ProcessRunner, ProgramEnvironment
from flexmarl.contracts.specification.reward import QueuedReward
from flexmarl.contracts.specification.tools import McpServer, ToolUse
from flexmarl.contracts.wire import Origin
from flexmarl.language.chat_format import ChatFormat
from flexmarl.store.control import commands, demand, engines, runs
from flexmarl.store.control.commands import ClaimStatus, Taken
from flexmarl.store.data import dataset_contents, groups, ready_commands, tokenizers, tool_listings
from flexmarl.store.data.ready_commands import ReadyPlay
from flexmarl.store.data.segments import SegmentFolder
from flexmarl.store.errors import EpochStale, SamplesAway, StoreFull, TokenLost
from flexmarl.store.telemetry import load_reports, sharing_reports
from workers.database import StorePool
from workers.exchange.access import ExchangeAccess
from workers.external_access import ExternalAccess
from workers.rollout import datasets
from workers.rollout.datasets import DatasetLines
from workers.rollout.demand import Reporter
from workers.rollout.engine_client import EngineClient
from workers.rollout.environments.dataset_questions import DatasetFamily
from workers.rollout.environments.rows import RowFamily
from workers.rollout.external import ExternalClient
from workers.rollout.gateway.commands import CommandPool
from workers.rollout.gateway.images import Images
from workers.rollout.gateway.processes import ProgramPool
from workers.rollout.gateway.server import Gateway, GatewayPlace
from workers.rollout.gateway.stage import ProgramStage
from workers.rollout.keeping import TTL_S, Keeper
from workers.rollout.load_reports import LoadReporter
from workers.rollout.members import CommandPlay, begin, play_each, play_group
from workers.rollout.nemo_gym_urls import NemoGymPool
from workers.rollout.openenv_urls import OpenEnvPool
from workers.rollout.packages import Builds, PackagePool
from workers.rollout.pausing import Hold
from workers.rollout.rewarding import Push, Rewards
from workers.rollout.run_context import RunContext
from workers.rollout.sharing import Sharing
from workers.rollout.slots import slots
from workers.rollout.stages import Stage, stage_of
from workers.rollout.tool_servers import ToolPool
from workers.rollout.tool_urls import UrlToolPool
from workers.rollout.tool_use import ToolStage
from workers.vocabulary import ByteCodec, Codec, byte_tokenizer, renderer_of

log = structlog.get_logger(__name__)

FULL_AGAIN_S = 1.0
"""Pause before groups that a full disk refused are written again."""
GIVE_BACK_TRIES = 5
GIVE_BACK_AGAIN_S = 0.2
RUNS_KEPT = 4
"""Runs whose connections a worker keeps open between commands."""

T = TypeVar("T")


class Player:
    """One per rollout worker process: a small connection pool and the contexts of the runs it plays for."""

    def __init__(
        self,
        pool: StorePool,
        folder: SegmentFolder | None = None,
        holder: str = "",
        access: ExternalAccess | None = None,
        push: Push | None = None,
        home: Path | None = None,
        gateway: GatewayPlace | None = None,
        images: Images | None = None,
        exchange: ExchangeAccess | None = None,
    ) -> None:
        """`home` is where builds of packages lie; without one, packages are not played."""
        self._pool = pool
        self._home = home
        self._gateway = Gateway(gateway or GatewayPlace(), self._store)
        self._images = images or Images()
        self._access = access or ExternalAccess()
        self._exchange = exchange or ExchangeAccess()
        self._push = push or _tell_nobody
        self._folder = folder
        self._holder = holder
        self._contexts: dict[int, RunContext] = {}
        self._opening = asyncio.Lock()
        self._keeper = Keeper(self._extend, self._held)

    async def play(self, run_id: int, no: int) -> None:
        """Carry out one command; returns when it is done, failed, or no longer ours."""
        ready = await self._store(lambda conn: ready_commands.take(conn, run_id, no, TTL_S, self._holder))
        if ready is None:
            return
        taken = ready.taken
        bound = log.bind(run_id=run_id, command=no)
        hold = Hold(taken.held)
        work = asyncio.create_task(self._carry_out(ready, hold))
        try:
            with self._keeper.keeping(taken, work, hold):
                await work
        except asyncio.CancelledError:
            # Not ours any more, or the process ends: giving it back does nothing in the first case.
            await self._give_back(taken)
            bound.info("command given up", reason="cancelled")
        except Exception as error:  # the command fails with its reason; the worker goes on with others
            await self._failed(taken, error)

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

    def look(self) -> None:
        """Look now which of the commands that are played are held. From any thread."""
        self._keeper.look()

    async def close(self) -> None:
        """Drop every connection."""
        for context in self._contexts.values():
            await context.close()
        self._contexts.clear()
        await self._gateway.close()

    async def _carry_out(self, ready: ReadyPlay, hold: Hold) -> None:
        taken, order = ready.taken, ready.taken.command
        if not isinstance(order, PlayGroups):
            raise TypeError(f"a rollout worker does not know {order.kind}")
        context = await self._context(taken.run_id)
        playing, trains = begin(taken, order, context, hold), order.origin is Origin.TRAIN
        queue: asyncio.Queue[groups.SettledGroup] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            expected = 0
            for group in order.groups:
                done = ready.settled.get(group.draw, set())
                if order.by_episode:
                    left = [member for member in range(group.members) if member not in done]
                    tasks.create_task(play_each(playing, group, left, queue))
                    expected += len(left)
                elif not done:
                    tasks.create_task(_play_whole(playing, group, queue))
                    expected += 1
            tasks.create_task(self._write(taken, queue, expected, context.sharing if trains else None))
        if not expected:
            await self._store(lambda conn: commands.finish(conn, taken))
        if news := context.client.counters.news():
            log.info("turns routed", run_id=taken.run_id, command=taken.no, **news)

    async def _write(
        self, taken: Taken, queue: "asyncio.Queue[groups.SettledGroup]", expected: int, sharing: Sharing | None
    ) -> None:
        """Write settled groups as they come: whatever settles during a write goes out with the next one, and with the
        last ones the command is done."""
        written = 0
        while written < expected:
            batch = [await queue.get()]
            while not queue.empty():
                batch.append(queue.get_nowait())
            written += len(batch)
            await self._put(taken, batch, last=written == expected)
            if sharing is not None:
                sharing.offer(batch)

    async def _put(self, taken: Taken, batch: list[groups.SettledGroup], last: bool) -> None:
        """Write groups; while the store takes none they wait here, and the command with them, until it does."""
        told = False
        while True:
            try:
                await self._store(partial(groups.put_groups, taken=taken, groups=batch, folder=self._folder, last=last))
                return
            except (StoreFull, SamplesAway) as refused:
                if not told:
                    log.error("groups wait for the store", run_id=taken.run_id, command=taken.no, error=str(refused))
                told = True
                await asyncio.sleep(FULL_AGAIN_S)

    async def _extend(self, held: Sequence[Taken]) -> list[ClaimStatus]:
        return await self._store(lambda conn: commands.extend(conn, held, TTL_S))

    async def _held(self, pausing: Sequence[Taken]) -> list[ClaimStatus]:
        return await self._store(lambda conn: commands.held_among(conn, pausing))

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
        chats = await self._store(lambda conn: tokenizers.load_chats(conn, run_id))

        async def routes() -> list[engines.EngineRoute]:
            return await self._store(lambda conn: engines.routes(conn, run_id))

        worker = f"{self._holder}-{secrets.token_hex(4)}"
        client = EngineClient(routes, ROUTERS.make(spec.mechanisms.router), resumes=not spec.mechanisms.ordered)
        codecs = {policy: Codec(body) for policy, body in bodies.items()}
        renderers = {policy: renderer_of(body, chats[policy]) for policy, body in bodies.items()}
        if not spec.policies:  # external models alone play
            codecs, renderers = {"": ByteCodec()}, {"": renderer_of(byte_tokenizer(), ChatFormat(plain=True).dump())}
        return RunContext(
            run_id=run_id,
            spec=spec,
            stage=await self._stage(run_id, spec.environment),
            codecs=codecs,
            renderers=renderers,
            client=client,
            external=ExternalClient(self._access),
            episodes=slots(spec.mechanisms.parallel.episodes),
            rewards=self._rewards(run_id, spec),
            load=self._load_reporter(run_id, worker, client),
            reporter=self._reporter(run_id, spec, worker, client) if spec.reports_demand else None,
            sharing=self._sharing(run_id, spec, worker) if spec.sampling.sharing.on else None,
        )

    async def _stage(self, run_id: int, environment: EnvironmentSpec) -> Stage:
        """Return where episodes play; one that plays rows of a dataset has them. Raises DatasetMissing."""
        if isinstance(environment, PackageEnvironment):
            return PackagePool(environment, builds=Builds(self._home, self._store))
        if isinstance(environment, OpenEnvUrl):
            return OpenEnvPool(environment, self._access)
        if isinstance(environment, NemoGymUrl):
            return NemoGymPool(environment, self._access, await self._rows(environment.dataset))
        if isinstance(environment, ProgramEnvironment):
            rows = None if environment.dataset is None else await self._rows(environment.dataset)
            return ProgramStage(run_id, environment, self._gateway, self._programs(run_id, environment), rows)
        stage = stage_of(environment)
        if isinstance(stage, RowFamily):
            stage.lines = await self._rows(stage.options.dataset)
        if isinstance(stage, DatasetFamily) and (use := stage.options.tools).servers:
            builds = Builds(self._home, self._store)
            pools = tuple(self._tool_pool(run_id, use, place, builds) for place in range(len(use.servers)))
            return ToolStage(stage, use, pools, stage.options.graph.tokens is not None)
        return stage

    def _programs(self, run_id: int, environment: ProgramEnvironment) -> ProgramPool | CommandPool | None:
        """Return what starts the programs of a run; None where others do."""
        builds = Builds(self._home, self._store)
        match environment.runner:
            case ProcessRunner() as runner:
                return ProgramPool(run_id, runner, self._gateway, builds)
            case CommandRunner() as runner:
                return CommandPool(run_id, runner, self._gateway, builds, self._images)
        return None

    async def _rows(self, dataset: NamedDataset) -> DatasetLines:
        """Return the rows of a dataset. Raises DatasetMissing."""
        digest = dataset.digest
        kept = datasets.kept(digest)
        if kept is None:
            kept = await self._store(lambda conn: datasets.keep(digest, dataset_contents.lines(conn, digest)))
        return kept

    def _tool_pool(self, run_id: int, use: ToolUse, place: int, builds: Builds) -> ToolPool | UrlToolPool:
        server = use.servers[place]
        if isinstance(server, McpServer):
            return ToolPool(server, builds, use.result_characters)

        async def pin(tools: str) -> str:
            return await self._store(lambda conn: tool_listings.pin(conn, run_id, place, tools))

        return UrlToolPool(server, self._access, pin, use.result_characters)

    def _load_reporter(self, run_id: int, worker: str, client: EngineClient) -> LoadReporter:
        async def put(report: load_reports.TurnReport) -> None:
            await self._store(lambda conn: load_reports.put_asked(conn, run_id, worker, report))

        return LoadReporter(run_id, client.counters, put)

    def _rewards(self, run_id: int, spec: ExperimentSpec) -> Rewards | None:
        if not isinstance(spec.reward, QueuedReward):
            return None
        return Rewards(run_id, spec.reward, spec.environment.type, self._store, self._push)

    def _reporter(self, run_id: int, spec: ExperimentSpec, worker: str, client: EngineClient) -> Reporter:
        async def put(number: int, event: DemandReported) -> bool:
            return await self._store(lambda conn: demand.report(conn, run_id, number, event))

        closely = spec.mechanisms.mover.repack_every_s is not None
        return Reporter(worker, client.counters.demand, client.at_engines, put, closely)

    def _sharing(self, run_id: int, spec: ExperimentSpec, worker: str) -> Sharing:
        async def claim(digests: Sequence[str]) -> list[str]:
            return await self._store(lambda conn: sharing_reports.claim(conn, run_id, digests))

        async def put(report: sharing_reports.SharingReport) -> None:
            await self._store(lambda conn: sharing_reports.put_report(conn, run_id, worker, report))

        return Sharing(spec, self._exchange, claim, put)

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


async def _play_whole(playing: CommandPlay, group: GroupOrder, settled: "asyncio.Queue[groups.SettledGroup]") -> None:
    settled.put_nowait(await play_group(playing, group))


def _tell_nobody(queue: str, actor: str, run_id: int, no: int) -> None:
    """Without a broker, whoever computes rewards finds tasks by itself."""
