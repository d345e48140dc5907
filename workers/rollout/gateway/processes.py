"""Agent programs that a rollout worker starts: functions of packages, a process for each session.

Invariants. A program has the key of its own session and no other secret. Calls come in at a socket that listens where
the programs are: where the kernel allows name spaces they reach nothing else. Whatever a program does or omits ends its
session by a reason, and its processes with it; what is no reward within the run's range is none.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psycopg
import structlog
from aiohttp import web

from flexmarl.contracts.specification.program import ProcessRunner, StartedRunner
from flexmarl.store.server_paths import without_paths
from workers.packages.inside.workspaces import MOST_DIFF, MOST_LISTED
from workers.rollout.environments.base import Ask, Outcome, Reply
from workers.rollout.gateway.server import Gateway
from workers.rollout.gateway.sessions import ProgramSession
from workers.rollout.isolation import EnvironmentBroke
from workers.rollout.isolation.keeper import HostKeeper, within
from workers.rollout.isolation.lines import (
    Began,
    Close,
    Closed,
    ProgramEarned,
    ProgramRan,
    ScoreOrder,
    StartCommand,
    StartProgram,
    line,
)
from workers.rollout.isolation.processes import ForkedProcess, ForkHost
from workers.rollout.packages import Builds, start_packaged

log = structlog.get_logger(__name__)

NO_CALL = "program: it asked no agent; clients find base URL and key in OPENAI_BASE_URL and OPENAI_API_KEY"


@dataclass(slots=True)
class ProgramPool(HostKeeper):
    """The programs of one run in one rollout worker."""

    run_id: int
    spec: ProcessRunner
    gateway: Gateway
    builds: Builds
    _folder: Path | None = None
    _served: ForkHost | None = None
    """The host at whose socket calls are answered."""
    _site: web.SockSite | None = None
    _url: str = ""
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _ending: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def build(self) -> None:
        """Have the package here. Raises EnvironmentBroke."""
        if self._folder is None:
            self._folder = await self.builds.of(self.spec)

    def play(self, session: ProgramSession, told: dict[str, Any], seed: int) -> "StartedProgram":
        """Start a program for a session. `told`: what it is told of it, except for its base URL."""
        return StartedProgram(self, session, told, seed)

    def started(self) -> ForkHost:
        assert self._folder is not None
        job = {
            "adapter": self.spec.pinned.adapter,
            "entry": self.spec.pinned.entry,
            "name": self.spec.program,
            "options": self.spec.options,
            "memory": self.spec.memory_mb * 2**20,
        }
        return start_packaged(self._folder, "programs", job)

    async def fork(self) -> tuple[ForkedProcess, str]:
        """Have a process, and the base URL at which it reaches the gateway. Raises EnvironmentBroke."""
        host = self.hosted()
        process = await host.fork()
        self._playing += 1
        try:
            return process, await self._reached(host)
        except BaseException:
            process.end()
            self.left()
            raise

    def release(self, process: ForkedProcess) -> None:
        """End a process whose session is over."""
        process.end()
        self.left()

    async def _reached(self, host: ForkHost) -> str:
        async with self._opening:
            if self._served is not host:
                self._shut()
                door = host.ready.result()
                assert door is not None
                self._site = await self.gateway.admit(door)
                self._served, self._url = host, f"http://127.0.0.1:{door.getsockname()[1]}/v1"
        return self._url

    def end_host(self) -> None:
        HostKeeper.end_host(self)
        self._shut()

    def _shut(self) -> None:
        site, self._site, self._served = self._site, None, None
        if site is not None:
            self.later(site.stop())

    def later(self, work: Any) -> None:
        """Do something that nobody waits for but the end of the pool."""
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End every program."""
        if self._ending:
            await asyncio.wait(self._ending)
        await HostKeeper.close(self)
        if self._ending:
            await asyncio.wait(self._ending)


class Starter(Protocol):
    """What starts the programs of one run in one rollout worker."""

    @property
    def run_id(self) -> int: ...

    @property
    def spec(self) -> StartedRunner: ...

    @property
    def gateway(self) -> Gateway: ...

    async def fork(self) -> tuple[ForkedProcess, str]:
        """Have a process, and the base URL at which it reaches the gateway. Raises EnvironmentBroke."""

    def late(self, broke: EnvironmentBroke) -> None:
        """Heed that a process did not begin in time."""

    def release(self, process: ForkedProcess) -> None:
        """End a process whose session is over."""

    def later(self, work: Any) -> None:
        """Do something that nobody waits for but the end of the pool."""


class StartedProgram:
    """A session that a program of this worker plays. Leave it in every case."""

    def __init__(self, pool: Starter, session: ProgramSession, told: dict[str, Any], seed: int) -> None:
        self.task = session.task
        self._pool, self._session = pool, session
        self._told, self._seed = told, seed
        self._process: ForkedProcess | None = None
        self._output = ""
        """End of what the program wrote, as far as that was heard."""
        self._work = asyncio.get_running_loop().create_task(self._play())

    @property
    def image(self) -> str:
        """Image of the container that it runs in, with its digest; empty: in none."""
        return ""

    def asks(self) -> list[Ask]:
        return self._session.asks()

    async def score(self, replies: list[Reply]) -> None:
        """Do nothing: the program says what it earned."""

    async def act(self, replies: list[Reply]) -> None:
        """Answer calls. Raises EnvironmentBroke for a program that raised, hung or died."""
        await self._session.act(replies)

    def refuse(self, ask: Ask, why: str) -> None:
        self._session.refuse(ask, why)

    def outcome(self) -> Outcome:
        return self._session.outcome()

    def leave(self, reason: str = "") -> None:
        """End the session and the program."""
        self._session.leave(reason)
        self._work.cancel()
        self._pool.later(self._end())

    # The program --------------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        """Tell the session what the program came to."""
        try:
            report = await self._earned()
        except EnvironmentBroke as broke:
            self._session.fail(str(broke))
        except Exception as error:  # such as a database that is away: nobody else hears of it
            log.exception("program not played", session=str(self._session.id))
            self._session.fail(f"program: {type(error).__name__}: {error}")
        else:
            self._session.report(report)

    async def _earned(self) -> dict[str, Any]:
        """Run the program; returns its report. Raises EnvironmentBroke."""
        spec = self._session.spec
        try:
            process = await within("boot", spec.boot_timeout_s, self._begun())
        except EnvironmentBroke as broke:
            self._pool.late(broke)
            raise
        self._session.taken()
        try:
            ran = await process.answer()
        except EnvironmentBroke as broke:
            raise EnvironmentBroke(f"run: {broke}") from broke
        if not isinstance(ran, ProgramRan):
            raise EnvironmentBroke(f"program: garbage: {type(ran).__name__} is not how it ended")
        self._output = ran.output
        if ran.reason:
            raise EnvironmentBroke(f"program: {ran.reason}")
        if not self._session.called:
            raise EnvironmentBroke(self._session.unheard or NO_CALL)
        report = await within("score", self._pool.spec.score_timeout_s, self._scored(process))
        if (fault := spec.fault_of(report)) is not None:
            raise EnvironmentBroke(f"score: {fault}")
        report = _in_numbers(report)
        if not await self._pool.gateway.earned(self._pool.run_id, self._session, report):
            raise EnvironmentBroke("score: its session was over")
        return report

    def _order(self, url: str) -> StartProgram | StartCommand:
        return StartProgram({**self._told, "base_url": url}, self._seed)

    async def _scored(self, process: ForkedProcess) -> dict[str, Any]:
        """Return what a program that has ended earned. Raises EnvironmentBroke."""
        return (await process.ask(ScoreOrder(), ProgramEarned)).report

    async def _begun(self) -> ForkedProcess:
        self._process, url = await self._forked()
        self._process.writer.write(line(self._order(url)))
        answer = await self._process.answer()
        if isinstance(answer, ProgramRan):
            self._output = answer.output
            raise EnvironmentBroke(answer.reason or "it ended before it began")
        if not isinstance(answer, Began):
            raise EnvironmentBroke(f"garbage: {type(answer).__name__} is not how it begins")
        return self._process

    async def _forked(self) -> tuple[ForkedProcess, str]:
        """Have a process, and the base URL at which it reaches the gateway. Raises EnvironmentBroke."""
        return await self._pool.fork()

    async def _end(self) -> None:
        """End the program, and keep the end of what it wrote."""
        await asyncio.wait([self._work])
        if (process := self._process) is None:
            return
        left = Closed(self._output)
        try:
            left = await within("close", self._pool.spec.close_timeout_s, self._closed(process))
        except EnvironmentBroke as broke:  # its session is over and has its reason
            log.warning("program not closed", session=str(self._session.id), reason=str(broke))
        finally:
            self._pool.release(process)
        try:
            kept = self._kept(left.output)
            await self._pool.gateway.wrote(self._session, kept, changes_of(left), self.image)
        except psycopg.Error as error:
            log.warning("output not written", session=str(self._session.id), error=str(error))

    async def _closed(self, process: ForkedProcess) -> Closed:
        process.writer.write(line(Close()))
        while not isinstance(answer := await process.answer(), Closed):
            continue  # what it said before it heard the order
        return answer

    def _kept(self, output: str) -> str:
        """Return what is kept of what was written."""
        return without_paths(output).replace("\0", "")


def changes_of(left: Closed) -> dict[str, Any] | None:
    """Return what a command made of its workspace as the store keeps it; None of other programs."""
    if left.changes is None:
        return None
    kept: dict[str, Any] = msgspec.to_builtins(left.changes)
    bounded = kept["diff"].encode(errors="ignore")[:MOST_DIFF].decode(errors="ignore")
    return {**kept, "files": kept["files"][:MOST_LISTED], "diff": bounded.replace("\0", "")}


def _in_numbers(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report in which true is 1."""
    return {
        name: {seat: float(one) for seat, one in value.items()} if name == "rewards" else float(value)
        for name, value in report.items()
    }
