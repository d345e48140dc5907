"""Carries out `host_lease`: keeps one child alive on a leased device until the lease is to end.

Invariants, and who guarantees them. Only the holder of the command's token hosts (store); before it starts a child it
proves the former one dead (here), so a device never has two. A child's end is told once per incarnation (store). The
lease ends only after its child is dead (here). A worker that shuts down leaves the lease held and the command open, so
that its successor goes on. A database that does not answer stops nothing: the child runs on, and the token decides
when it is back. A child that lives and hangs is found by `watchdog`, leaves its stacks in its log and is replaced like
a dead one.
"""

import queue
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from flexmarl.contracts.commands import HostLease
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.status import MEMORY_NEXT
from flexmarl.store.control import commands, leases, nodes, runs
from flexmarl.store.control.commands import Taken
from flexmarl.store.control.leases import LeaseHold
from flexmarl.store.errors import LeaseLost, TokenLost
from workers import last_intervals, memory, reporting
from workers.child import ChildConfig
from workers.children import Child, Ended, Failed, Ready, prove_dead
from workers.database import StorePool
from workers.errors import ChildUnreachable, HostingError
from workers.forking import ForkServerThread
from workers.hosting_signals import Shutdown, Signal, Stop
from workers.lives import Lives
from workers.log_tail import LogTail, last_words
from workers.programs import device_environment, program_of
from workers.settings import Settings
from workers.watchdog import Hangs, WatchdogThread

log = structlog.get_logger(__name__)

TTL_S = 5.0
"""A lease whose host says nothing for this long may be hosted by another worker."""
RENEW_S = 1.0
READY_S = 180.0
"""A child that has not answered by then counts as lost; loading a large model takes minutes."""
RETRY_S = 0.5
IMPORTED_S = 60.0
"""A fork server that has not imported by then is not waited for."""
HUNG_NEXT = "killed and restarted automatically; the child's log has its stacks"


def host_lease(
    settings: Settings, pool: StorePool, shutdown: Shutdown, run_id: int, no: int, forks: ForkServerThread | None = None
) -> None:
    """Host a lease until it ends, is taken away, or this worker shuts down. `forks` starts its children."""
    if shutdown.requested.is_set():
        return
    with pool.connection() as conn:
        taken = commands.take(conn, run_id, no, TTL_S, settings.holder("device"))
        if taken is None or not isinstance(taken.command, HostLease):
            return
        hosting = leases.take_hosting(conn, taken, TTL_S)
        if hosting is None:
            commands.finish(conn, taken)
            return
        spec = runs.load_spec(conn, run_id)
        devices = [nodes.device(conn, one) for one in (hosting.device_id, *hosting.further)]
    known = [device for device in devices if device is not None]
    host = LeaseHost(settings, pool, taken, hosting, spec, known, forks)
    shutdown.join(host.signals)
    try:
        host.run()
    finally:
        shutdown.leave(host.signals)


@dataclass
class ChildLife:
    """One incarnation of the child."""

    child: Child
    secret: str
    ready_by: float
    port: int | None = None
    published: bool = False
    tail: LogTail | None = None
    watchman: WatchdogThread | None = None
    hung: str = ""
    """Why it was killed, when it hung."""
    failed: str = ""
    """Why no life of this child can work, in its own words."""
    log_start: int = 0
    ready_at: float = 0.0
    """Monotonic seconds, once it is published."""
    kills: int = field(default_factory=memory.kernel_kills)
    """Processes that the kernel had killed for memory when it started."""

    def ready_s(self, now: float) -> float | None:
        """Return how long it was ready, None when it never was."""
        return now - self.ready_at if self.published else None

    def reason(self, code: int) -> str:
        """Return why it ended, with its last words where they are known."""
        if self.hung or self.failed:
            return self.hung or f"the child cannot work: {self.failed}"
        if memory.killed_for_memory(code, self.kills):
            held = self.watchman.held if self.watchman is not None else 0
            having = f" when it held {memory.size(held)}" if held else ""
            return f"{memory.OUT_OF_MEMORY}: the kernel killed it for lack of memory{having}"
        log_file = self.child.log_file if code > 0 else None  # one that a signal ended had no time for words
        words = last_words(log_file, self.log_start) if log_file is not None else ""
        if memory.tells_of_memory(words):
            return f"{memory.OUT_OF_MEMORY}: the child ended with code {code}, saying: {words}"
        return f"the child ended with code {code}" + (f", saying: {words}" if words else "")

    def end(self) -> None:
        """Stop the child, if it lives, and whoever watches it."""
        if self.watchman is not None:
            self.watchman.stop()
        self.child.stop()
        if self.tail is not None:
            self.tail.stop()


class LeaseHost:
    """One lease and the lives of its child. Runs on the thread that called `run`."""

    def __init__(
        self,
        settings: Settings,
        pool: StorePool,
        taken: Taken,
        hosting: LeaseHold,
        spec: dict[str, object],
        devices: Sequence[nodes.DeviceRow],
        forks: ForkServerThread | None = None,
    ) -> None:
        """`devices`: that of the lease, and the further ones of its engine. `forks` starts its children, if given."""
        self.signals: queue.SimpleQueue[Signal] = queue.SimpleQueue()
        self._settings, self._pool, self._taken, self._hosting = settings, pool, taken, hosting
        self._spec, self._devices, self._forks = spec, tuple(devices), forks
        self._lives = 0
        self._lost = Lives()
        self._memory_told = False
        self._log = log.bind(run_id=hosting.run_id, lease_id=hosting.lease_id, device=hosting.device_id)

    def run(self) -> None:
        """Prove the former child dead, then start children until there is a reason to stop."""
        try:
            prove_dead(self._hosting.former_pid, self._hosting.former_pid_started)
        except HostingError as error:
            self._log.error("cannot host", error=str(error))  # the device stays claimed: nothing proved it free
            return
        try:
            if self._hosting.releasing:
                self._end("released")
                return
            while self._one_life():
                pass
        except (LeaseLost, TokenLost) as lost:
            self._log.info("hosting given up", reason=str(lost))

    def _one_life(self) -> bool:
        """Start a child and keep it to its end; False when the hosting is over."""
        if not self._await_fork_server():
            return False
        try:
            life = self._start()
        except HostingError as error:
            self._log.error("cannot start the child", error=str(error))
            self._end(f"the child cannot start: {error}", cannot_start=True)
            return False
        try:
            code = self._keep(life)
        finally:
            life.end()
        if code is None:
            return False
        now = time.monotonic()
        reason = life.reason(code)
        self._log.warning("child lost", incarnation=life.child.incarnation, code=code, reason=reason)
        lack = reason.startswith(memory.OUT_OF_MEMORY)
        advice = f"; {MEMORY_NEXT}" if lack else ""
        often = self._lost.lost(now, hung=bool(life.hung), ready_s=life.ready_s(now), memory=lack)
        if life.published or not life.failed:
            then = f"; {HUNG_NEXT}" if life.hung and not often else ""
            self._store(
                lambda conn: leases.child_lost(
                    conn, self._hosting, life.child.incarnation, reason + then + advice, life.published
                )
            )
        if often or life.failed:
            self._end(f"{reason}, {often}{advice}" if often else reason, cannot_start=bool(life.failed))
            return False
        return self._pause(self._lost.pause_s(now))

    def _await_fork_server(self) -> bool:
        """Keep the lease while the fork server still imports; False when the hosting is over."""
        until = time.monotonic() + IMPORTED_S
        while self._forks is not None and not self._forks.settled(RENEW_S) and time.monotonic() < until:
            if not self._renew(None) or not self._pause(0.0):
                return False
        return True

    def _start(self) -> ChildLife:
        program = program_of(self._hosting.use, self._spec, self._settings)
        self._lives += 1
        use, lease_id = self._hosting.use, self._hosting.lease_id
        config = ChildConfig(
            use=use.value,
            run_id=self._hosting.run_id,
            lease_id=lease_id,
            fence=self._hosting.fence,
            incarnation=f"{use.value[0]}{lease_id}.{self._hosting.fence}.{self._lives}",
            device="cuda:0" if self._devices[0].kind == "cuda" else "cpu",
            threads=self._settings.child_threads,
            host=self._settings.child_host,
            secret=secrets.token_urlsafe(24),
            home=str(self._settings.home),
            spec=self._spec,
            model_roots=self._settings.model_roots,
            devices=len(self._devices),
            python=sys.executable,
        )
        log_dir = self._settings.log_dir
        log_file = log_dir / f"{use.value}-{lease_id}.log" if log_dir else None
        tail = None if log_file is None else LogTail(log_file, partial(self._child_said, use))
        environment = {**device_environment(self._devices, self._settings.child_threads), **program.environment}
        log_start = log_file.stat().st_size if log_file is not None and log_file.exists() else 0
        child = Child(program.module, config, environment, log_file, program.python, self._forks)
        try:
            self._store(lambda conn: leases.child_started(conn, self._hosting, child.pid, child.started()))
        except BaseException:
            child.stop(0.0)
            raise
        child.watch(self.signals.put)
        if tail is not None:
            tail.start()
        self._log.info("child started", use=use.value, incarnation=child.incarnation, pid=child.pid)
        return ChildLife(child, config.secret, time.monotonic() + READY_S, tail=tail, log_start=log_start)

    def _child_said(self, use: DeviceUse, line: dict[str, object], level: str) -> None:
        """Pass a line of the child on to the store, as a line of its run."""
        shipper = reporting.shipper()
        if shipper is not None:
            line = {"device": self._hosting.device_id, **line, "run_id": self._hosting.run_id}
            shipper.offer_event(line, level, component=use.value)

    def _keep(self, life: ChildLife) -> int | None:
        """Watch a child and renew the lease; the exit code when it was lost, None when the hosting is over."""
        renew_at = time.monotonic() + RENEW_S
        while True:
            if time.monotonic() >= renew_at:
                if not self._renew(life):
                    return None
                renew_at = time.monotonic() + RENEW_S
            try:
                signal = self.signals.get(timeout=max(0.0, renew_at - time.monotonic()))
            except queue.Empty:
                continue
            match signal:  # a hang of a life that ended meanwhile is nobody's
                case Ready(port, rendezvous):
                    life.port = port
                    self._publish(life, rendezvous)
                case Failed(reason):
                    life.failed = reason
                case Ended(code):
                    return code
                case Hangs(incarnation, reason) if incarnation == life.child.incarnation:
                    life.hung = reason
                    self._log.error("child hangs", incarnation=incarnation, reason=reason)
                    life.child.abort()  # its end arrives as a signal
                case Stop():
                    self._let_go(life)
                    return None

    def _renew(self, life: ChildLife | None) -> bool:
        """Extend the lease and follow what the store says; False when the hosting is over. `life`: the child's, if one
        has been started."""
        try:
            with self._pool.connection() as conn:
                renewal = leases.renew(conn, self._hosting, TTL_S)
        except psycopg.OperationalError as error:
            self._log.warning("could not renew", error=str(error))
            return True
        if not renewal.held:
            self._log.warning("lease has another host")
            return False
        if renewal.releasing:
            if life is not None:
                self._stop(life)
            self._end("released")
            return False
        if life is None:
            return True
        self._compare(life)
        late = life.port is None and time.monotonic() > life.ready_by
        if late or (life.published and not renewal.incarnation):
            life.child.stop(0.0)  # counted as lost; its end arrives as a signal
        return True

    def _compare(self, life: ChildLife) -> None:
        """Tell the run once when a child takes clearly more memory than was leased."""
        held = life.watchman.held if life.watchman is not None else 0
        leased = self._hosting.memory_bytes * len(self._devices)
        if 0 < leased * memory.TOLD_ABOVE < held and not self._memory_told:
            self._memory_told = True
            use, figures = self._hosting.use.value, {"held": memory.size(held), "leased": memory.size(leased)}
            self._log.warning("memory above what was leased", use=use, **figures)

    def _publish(self, life: ChildLife, rendezvous: int) -> None:
        url = self._url(life)
        meet = f"{self._settings.child_host}:{rendezvous}" if rendezvous else ""
        own = (life.child.incarnation, url, life.secret, meet)
        try:
            self._store(lambda conn: leases.child_ready(conn, self._hosting, *own))
        except LeaseLost:
            return  # released meanwhile: the next renewal says what to do
        life.published, life.ready_at = True, time.monotonic()
        life.watchman = WatchdogThread(
            life.child.incarnation, life.child.pid, url, life.secret, self._settings.child_stuck_s, self.signals.put,
            ranks=len(self._devices) > 1,
        )  # fmt: skip
        self._log.info("child ready", incarnation=life.child.incarnation, endpoint=url)

    def _stop(self, life: ChildLife) -> None:
        """Stop the child in order, after it told what it did last."""
        if life.published:
            url = self._url(life)
            try:
                with self._pool.connection() as conn:
                    last_intervals.keep(conn, self._hosting, life.child.incarnation, url, life.secret)
            except (ChildUnreachable, psycopg.Error, PoolTimeout) as error:
                self._log.warning("last intervals lost", incarnation=life.child.incarnation, error=str(error))
        life.child.stop()

    def _url(self, life: ChildLife) -> str:
        return f"http://{self._settings.child_host}:{life.port}"

    def _let_go(self, life: ChildLife) -> None:
        self._stop(life)
        if life.published:
            reason = "its device worker shuts down"
            self._store(lambda conn: leases.child_lost(conn, self._hosting, life.child.incarnation, reason))
        self._store(lambda conn: leases.let_go(conn, self._hosting))
        self._log.info("hosting left to a successor")

    def _end(self, reason: str, cannot_start: bool = False) -> None:
        self._store(lambda conn: leases.end(conn, self._taken, self._hosting, reason, cannot_start))
        self._log.info("lease ended", reason=reason)

    def _pause(self, seconds: float) -> bool:
        """Wait before the next life; False when the worker shuts down meanwhile."""
        until = time.monotonic() + seconds
        while True:
            try:
                signal = self.signals.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(signal, Stop):
                self._store(lambda conn: leases.let_go(conn, self._hosting))
                return False
        return True

    def _store(self, call: Callable[[psycopg.Connection], None]) -> None:
        """Write to the store, waiting out a database that does not answer."""
        while True:
            try:
                with self._pool.connection() as conn:
                    call(conn)
                return
            except (psycopg.OperationalError, PoolTimeout) as error:
                self._log.warning("store does not answer", error=str(error))
                time.sleep(RETRY_S)
