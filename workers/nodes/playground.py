"""Engines for people who talk to runs that have none: finished, paused, or asked for a version no longer served.

Invariants. Nothing starts before somebody asks, and what nobody asked for `IDLE_S` is stopped: at rest this costs no
memory. There are at most `MOST_ENGINES`, one process per run: of those that nobody waits for, the one asked least
recently makes room, and an answer under way is never ended for another run. An engine is the child that a lease would
host, on the CPU and without a lease: it trains nothing, holds no device, and dies with its node. What it holds comes
from the state plane by the digest of a committed version, so it answers as the trained agent did. Everything here
runs on the node's event loop.
"""

import asyncio
import contextlib
import itertools
import secrets
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import structlog
from psycopg import Connection

from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.plane_tokens import TokenPlane, sign
from flexmarl.contracts.play import ENGINES_BUSY, PlayEngine, PlayRefusal, PlayRequest
from flexmarl.store.control import runs
from flexmarl.store.control.leases import ChildEndpoint
from flexmarl.store.data import steps
from flexmarl.store.errors import Refused, UnknownRun
from flexmarl.store.server_paths import without_paths
from workers.child import ChildConfig
from workers.children import Child, Ended, Failed, Ready, Report
from workers.errors import ChildRefused, ChildUnreachable
from workers.nodes.child_client import ChildClient
from workers.nodes.lanes import StoreRunner
from workers.programs import MODULES, confined
from workers.rollout.engines.wire import LoadRequest
from workers.settings import Settings

log = structlog.get_logger(__name__)

MODULE = MODULES[DeviceUse.ENGINE]
MOST_ENGINES = 2
IDLE_S = 300.0
"""An engine that nobody asked for so long is stopped."""
CLAIMED_S = 2.0
"""Who was told of an engine so short a time ago is about to ask it, or to look again whether it has started."""
STATS_S = 2.0
FAILED_S = 10.0
"""How long a start that failed is told before another one is tried."""
LOAD_S = 30.0
TEND_S = 5.0
STOP_S = 0.5
"""It has nothing to bring to an end: whoever waits for an answer asks again."""


@dataclass
class EngineLife:
    """One engine process, from its start to its end."""

    child: Child
    config: ChildConfig
    began: float
    used: float
    port: int | None = None
    failed: str = ""
    """Why it ended, once it has."""
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def endpoint(self, host: str) -> ChildEndpoint:
        address = f"http://{host}:{self.port}"
        return ChildEndpoint(
            0, self.config.run_id, "", DeviceUse.ENGINE, self.config.incarnation, address, self.config.secret
        )


class Playground:
    """The engines of one node that no lease stands behind."""

    def __init__(self, settings: Settings, store: StoreRunner, module: str = MODULE, idle_s: float = IDLE_S) -> None:
        self._settings, self._store = settings, store
        self._module, self._idle_s = module, idle_s
        self._lives: dict[int, EngineLife] = {}
        """Run -> its engine."""
        self._numbers = itertools.count(1)

    async def ask(self, session: aiohttp.ClientSession, asked: PlayRequest) -> PlayEngine | PlayRefusal:
        """Return the engine that holds a version, one that is starting, or why there is none."""
        try:
            version, spec = await self._store(partial(_read, asked=asked))
        except (Refused, UnknownRun) as refused:
            return PlayRefusal(code=getattr(refused, "code", "no_run"), detail=str(refused))
        life = self._lives.get(asked.run_id)
        if life is None:
            if not await self._make_room(session):
                runs = ", ".join(map(str, sorted(self._lives)))
                detail = f"the {MOST_ENGINES} engines of {self._settings.node} answer for other runs (numbers {runs})"
                return PlayRefusal(code=ENGINES_BUSY, detail=detail)
            life = self._start(asked.run_id, spec)
        if life.failed:
            return PlayRefusal(code="engine_failed", detail=life.failed)
        life.used = time.monotonic()
        if life.port is None:
            return PlayEngine(since_s=time.monotonic() - life.began)
        return await self._loaded(session, life, version)

    async def tend(self) -> None:
        """Stop engines that nobody uses, and forget starts that failed a while ago."""
        now = time.monotonic()
        for run_id, life in list(self._lives.items()):
            if now - life.used > (FAILED_S if life.failed else self._idle_s):
                await self._stop(run_id)

    async def close(self) -> None:
        """Stop all."""
        await asyncio.gather(*(self._stop(run_id) for run_id in list(self._lives)))

    async def _loaded(
        self, session: aiohttp.ClientSession, life: EngineLife, version: steps.PolicyVersionRow
    ) -> PlayEngine | PlayRefusal:
        """Make the engine hold a version; it does nothing when it does already."""
        at = life.endpoint(self._settings.advertise_host)
        try:
            async with asyncio.timeout(LOAD_S), life.loading:
                await ChildClient(session, at).load(LoadRequest(version.policy, version.version, version.digest))
        except ChildRefused as refused:
            return PlayRefusal(code=refused.code, detail=without_paths(refused.detail))
        except (ChildUnreachable, TimeoutError) as error:
            return PlayRefusal(code="engine_failed", detail=f"the engine did not answer: {error or 'no time left'}")
        token = sign(life.config.secret, life.config.run_id, TokenPlane.ROLLOUT, time.time())
        return PlayEngine(endpoint=at.endpoint, token=token, digest=version.digest)

    async def _make_room(self, session: aiohttp.ClientSession) -> bool:
        """Stop the engine asked least recently of those that nobody waits for, when there are enough; tell if so."""
        while len(self._lives) >= MOST_ENGINES:
            for run_id in sorted(self._lives, key=lambda run: self._lives[run].used):
                life = self._lives.get(run_id)
                if life is None or await self._idle(session, life):
                    await self._stop(run_id)
                    break
            else:
                return False
        return True

    async def _idle(self, session: aiohttp.ClientSession, life: EngineLife) -> bool:
        """Tell whether nobody waits for an engine. One that does not say so in time is as good as idle."""
        if not life.failed and time.monotonic() - life.used < CLAIMED_S:
            return False
        if life.port is None:
            return True
        used = life.used
        with contextlib.suppress(ChildRefused, ChildUnreachable, TimeoutError):
            async with asyncio.timeout(STATS_S):
                stats = await ChildClient(session, life.endpoint(self._settings.advertise_host)).stats()
            return not (stats.running or stats.waiting) and life.used == used
        return True

    def _start(self, run_id: int, spec: dict[str, object]) -> EngineLife:
        """Start a run's engine."""
        if run_id in self._lives:  # somebody else asked meanwhile
            return self._lives[run_id]
        config = self._config(run_id, spec)
        # From this thread, the node's first: the kernel ties the child to the thread that starts it.
        child = Child(self._module, config, confined(self._settings.child_threads), self._log_file(run_id))
        now = time.monotonic()
        life = self._lives[run_id] = EngineLife(child, config, began=now, used=now)
        child.watch(_on_loop(asyncio.get_running_loop(), partial(self._told, life)))
        log.info("playground engine started", run_id=run_id, incarnation=config.incarnation, pid=child.pid)
        return life

    def _config(self, run_id: int, spec: dict[str, object]) -> ChildConfig:
        return ChildConfig(
            use=DeviceUse.ENGINE.value,
            run_id=run_id,
            lease_id=0,
            fence=0,
            incarnation=f"p{run_id}.{next(self._numbers)}",
            device="cpu",
            threads=self._settings.child_threads,
            host=self._settings.child_host,
            secret=secrets.token_urlsafe(24),
            home=str(self._settings.home),
            spec=spec,
            model_roots=self._settings.model_roots,
            python=sys.executable,
        )

    def _told(self, life: EngineLife, report: Ready | Failed | Ended) -> None:
        if isinstance(report, Ready):
            life.port = report.port
            return
        if isinstance(report, Failed):
            return  # its end follows
        life.port, life.used = None, time.monotonic()
        where = self._log_file(life.config.run_id)
        life.failed = f"the engine ended with code {report.code}" + (
            f"; its node's {where.name} says why" if where else ""
        )
        if self._lives.get(life.config.run_id) is life:
            log.warning("playground engine lost", incarnation=life.config.incarnation, code=report.code)

    async def _stop(self, run_id: int) -> None:
        life = self._lives.pop(run_id, None)
        if life is not None:
            await asyncio.to_thread(life.child.stop, STOP_S)
            log.info("playground engine stopped", run_id=run_id, incarnation=life.config.incarnation)

    def _log_file(self, run_id: int) -> Path | None:
        folder = self._settings.log_dir
        return folder / f"playground-{run_id}.log" if folder else None


def _read(conn: Connection, asked: PlayRequest) -> tuple[steps.PolicyVersionRow, dict[str, object]]:
    spec = runs.load_spec(conn, asked.run_id)
    return steps.version_of(conn, asked.run_id, asked.policy, asked.version), spec


def _on_loop(loop: asyncio.AbstractEventLoop, take: Report) -> Report:
    """Hand a report of the child's own thread to the loop; one that closed meanwhile needs none."""

    def report(what: Ready | Failed | Ended) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(take, what)

    return report
