"""The driver process: holds runs by expiring leases and turns the loop for each of them.

Invariants: only the holder of a run's fence writes its state, so a driver that stalls or is cut off can do no harm;
a NOTIFY is a hint, every run is looked at every `POLL_S` anyway; no lease is counted as expired before the database
has been up for longer than a lease lives, so that an outage of the database kills no child.
"""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import psycopg
import structlog
from psycopg import Connection

from flexmarl.contracts.commands import Route
from flexmarl.contracts.status import TERMINAL, RunReason
from flexmarl.controlplane.runs.driver import reconciling
from flexmarl.controlplane.runs.driver.abandoning import abandon
from flexmarl.controlplane.runs.driver.announcing import Announcer
from flexmarl.controlplane.runs.driver.arbitration import grant_devices, has_surplus, may_grow, wants_devices
from flexmarl.controlplane.runs.driver.draining import request_drains
from flexmarl.controlplane.runs.driver.pushing import BrokerPush, NodePush, Pushes
from flexmarl.controlplane.runs.driver.session import CommittedTurn, CoreRaised, RunSession
from flexmarl.controlplane.runs.driver.turning import turns
from flexmarl.store.connection import connect
from flexmarl.store.control import commands, inbox, leases, runs
from flexmarl.store.control.runs import RunLease
from flexmarl.store.control.unclaimed import end_unclaimed
from flexmarl.store.errors import FenceLost

log = structlog.get_logger(__name__)

RUN_TTL_S = 6.0
"""A driver that died is replaced after so long."""
RENEW_S = 1.5
CLAIM_S = 0.5
POLL_S = 0.5
"""Every run is looked at this often, hints or not."""
TURNS_S = 0.5
"""A run with a long backlog lets the others, its pushes and the leases have their turn so often."""
ARBITRATE_S = 0.2
GROW_S = 1.0
"""Pause between two looks while runs only would use more engines, or might give some back."""
SWEEP_S = 1.0
DRAIN_S = 0.5
CHILD_TTL_S = 6.0
"""Longer than a host's lease lives without renewal."""
TRUSTED_S = 30.0
"""After a database was away, nodes have so long for a heartbeat before they are silent of themselves."""
MAX_ERRORS = 5
"""Unexpected errors of one run in a row before it is given up."""
RECONNECT_S = (0.1, 0.2, 0.3, 0.5, 0.5, 1.0, 2.0)


@dataclass(slots=True)
class DrivenRun:
    """A run this driver holds, and when to look at it next (monotonic clock)."""

    lease: RunLease
    session: RunSession | None = None
    look_at: float = 0.0
    push_at: float = 0.0
    errors: int = 0
    raised: dict[str, int] = field(default_factory=dict)
    """Producer key of a fact on which the core raised -> how often."""

    def poisoned(self) -> set[str]:
        """Return the facts on which the core raised again on a state rebuilt from the store."""
        return {key for key, times in self.raised.items() if times > 1}


@dataclass(slots=True)
class Schedule:
    """When the driver's own chores come next (monotonic clock)."""

    claim: float = 0.0
    renew: float = 0.0
    arbitrate: float = 0.0
    sweep: float = 0.0
    drain: float = 0.0


@dataclass(slots=True)
class Link:
    """The two connections: one for work, one that only listens."""

    work: Connection
    listen: Connection
    up_since: float = field(default_factory=time.monotonic)


class Driver:
    """Drives every run it can claim until told to stop."""

    def __init__(
        self,
        database_url: str,
        owner: str,
        pushes: Pushes,
        announcer: Announcer,
        turned: Callable[[], None] = lambda: None,
    ) -> None:
        self.owner = owner
        self.held: dict[int, DrivenRun] = {}
        self._url = database_url
        self._pushes = pushes
        self._announcer = announcer
        self._turned = turned
        """Called at every turn of the loop, so that others see it move."""
        self._stop = threading.Event()
        self._schedule = Schedule()

    def stop(self) -> None:
        """Ask the loop to end; it gives its runs back. May be called from another thread."""
        self._stop.set()

    def run(self) -> None:
        """Drive until stopped, across losses of the database."""
        failures = 0
        while not self._stop.is_set():
            self._turned()
            try:
                with connect(self._url, "flexmarl.driver") as work, connect(self._url, "flexmarl.driver.listen") as ear:
                    failures = 0
                    self._serve(Link(work, ear))
            except psycopg.OperationalError as error:
                self.held.clear()
                delay = RECONNECT_S[min(failures, len(RECONNECT_S) - 1)]
                failures += 1
                log.warning("database_away", error=str(error).strip(), retry_s=delay)
                self._stop.wait(delay)

    def _serve(self, link: Link) -> None:
        link.listen.execute(f"LISTEN {inbox.CHANNEL}")
        # After a loss of connection our former leases are ours by name only: start over under new fences.
        runs.release_runs(link.work, self.owner)
        self._schedule = Schedule()
        log.info("driver_ready", owner=self.owner)
        while not self._stop.is_set():
            self._turned()
            self._keep_runs(link.work)
            for run_id in list(self.held):
                self._turned()
                self._look(link.work, run_id)
            self._arbitrate(link.work)
            self._sweep(link)
            self._drain(link)
            self._wait(link.listen)
        runs.release_runs(link.work, self.owner)
        self.held.clear()
        log.info("driver_stopped", owner=self.owner)

    # -- which runs -------------------------------------------------------------------------------------------------
    def _keep_runs(self, conn: Connection) -> None:
        """Renew what is held, drop what is not any more, claim what nobody holds."""
        now = time.monotonic()
        if now >= self._schedule.renew:
            self._schedule.renew = now + RENEW_S
            still = runs.renew_runs(conn, self.owner, RUN_TTL_S)
            for run_id in self.held.keys() - still:
                log.warning("run_lost", run_id=run_id, reason="another driver holds it")
                del self.held[run_id]
            for run_id in still - self.held.keys():
                # Ours by its row, let go after an error: nobody else may take it, so take it up again.
                self.held[run_id] = DrivenRun(RunLease(run_id, self.owner, runs.load_run(conn, run_id).fence))
        if now >= self._schedule.claim:
            self._schedule.claim = now + CLAIM_S
            for lease in runs.claim_runs(conn, self.owner, RUN_TTL_S):
                self.held[lease.run_id] = DrivenRun(lease)

    # -- one run ----------------------------------------------------------------------------------------------------
    def _look(self, conn: Connection, run_id: int) -> None:
        """Turn a run's loop as long as there are facts, then push. An error of one run never reaches another."""
        held = self.held[run_id]
        now = time.monotonic()
        if now < min(held.look_at, held.push_at):
            return
        try:
            if now >= held.look_at:
                self._turns(conn, held)
            if run_id in self.held and time.monotonic() >= held.push_at:
                self._push(conn, held)
        except FenceLost as lost:
            log.warning("run_lost", run_id=run_id, reason=str(lost))
            self.held.pop(run_id, None)
        except CoreRaised as raised:
            # Once more from the store; a second time the fact ends the run instead.
            held.session, held.look_at = None, 0.0
            held.raised[raised.key] = held.raised.get(raised.key, 0) + 1
        except psycopg.OperationalError:
            raise
        except Exception as error:  # whatever is wrong with one run, the others go on; after some tries it is failed
            self._unexpected(conn, held, error)

    def _turns(self, conn: Connection, held: DrivenRun) -> None:
        if held.session is None:
            held.session = RunSession.load(conn, held.lease)
            held.push_at = 0.0
            if held.session.differences:
                # Its core would go on from rows that are not there: the run ends without it.
                text = reconciling.in_words(held.session.differences)
                self.held.pop(held.lease.run_id)
                abandon(conn, held.lease, text, RunReason.STORE_DIFFERS)
                return
        until = time.monotonic() + TURNS_S
        with closing(turns(held.session, conn, held.poisoned(), until)) as going:
            for turn in going:
                self._turned()
                held.errors = 0
                held.raised.clear()
                self._after(held, turn)
        if held.session.core.state.lifecycle.status in TERMINAL:
            self._leave(conn, held)
            return
        now = time.monotonic()
        held.look_at = 0.0 if now >= until else now + self._idle_s(held.session)

    def _after(self, held: DrivenRun, turn: CommittedTurn) -> None:
        assert held.session is not None
        if turn.issued:
            held.push_at = 0.0
        if turn.held:
            self._pushes.to_players(held.session.core.rollout_pool)
        if wants_devices(held.session):
            self._schedule.arbitrate = 0.0
        self._announcer.changed(held.lease.run_id, turn.seq, moved=turn.moved)

    def _leave(self, conn: Connection, held: DrivenRun) -> None:
        """Let an ended run go, with every device that was granted behind its back. A late fact brings it here again."""
        leases.release_run(conn, held.lease.run_id)
        runs.release_run(conn, held.lease)
        log.info("run_left", run_id=held.lease.run_id, status=held.session and held.session.core.state.lifecycle.status)
        del self.held[held.lease.run_id]

    def _idle_s(self, session: RunSession) -> float:
        """Return how long a run without facts may rest: until its deadline, at most the poll interval."""
        wait_s = session.wait_s()
        return POLL_S if wait_s is None else min(POLL_S, wait_s + 0.001)

    def _unexpected(self, conn: Connection, held: DrivenRun, error: Exception) -> None:
        held.session = None
        held.errors += 1
        held.look_at = held.push_at = time.monotonic() + min(0.2 * 2**held.errors, 5.0)
        log.exception("run_turn_failed", run_id=held.lease.run_id, errors=held.errors)
        if held.errors >= MAX_ERRORS:
            self.held.pop(held.lease.run_id, None)
            try:
                cause = f"{type(error).__name__}: {error}"[:500]
                text = f"the orchestrator cannot continue: {cause}; report the log of this run's driver"
                abandon(conn, held.lease, text)
            except FenceLost as lost:
                log.warning("run_lost", run_id=held.lease.run_id, reason=str(lost))

    # -- outside ----------------------------------------------------------------------------------------------------
    def _push(self, conn: Connection, held: DrivenRun) -> None:
        """Point at every command that nobody looks at. One push per child is enough: its node takes them in order."""
        run_id = held.lease.run_id
        due = commands.due(conn, run_id)
        notified: set[int] = set()
        for command in due:
            if command.route is Route.BROKER:
                self._pushes.to_broker(BrokerPush(command.queue, command.kind, run_id, command.no))
            elif command.route is Route.NODE and command.lease_id not in notified:
                notified.add(command.lease_id)
                self._pushes.to_node(NodePush(command.address, run_id, command.no, command.lease_id, command.node))
        commands.mark_sent(conn, run_id, [command.no for command in due])
        soonest = commands.next_due(conn, run_id)
        wait_s = POLL_S * 4 if soonest is None else max(soonest - runs.database_now(conn), 0.02)
        held.push_at = time.monotonic() + min(wait_s, POLL_S * 4)

    def _arbitrate(self, conn: Connection) -> None:
        """Serve waiting runs, as long as one of ours waits."""
        now = time.monotonic()
        if now < self._schedule.arbitrate:
            return
        mine = {run_id: held.session for run_id, held in self.held.items() if held.session is not None}
        urgent = any(wants_devices(session) for session in mine.values())
        self._schedule.arbitrate = now + (ARBITRATE_S if urgent else GROW_S)
        if not urgent and not any(may_grow(session) or has_surplus(session) for session in mine.values()):
            return
        try:
            granted, explained = grant_devices(conn, mine)
        except FenceLost as lost:
            log.warning("run_lost", run_id=lost.run_id, reason=str(lost))
            self.held.pop(lost.run_id, None)
            return
        for run_id in granted:
            self.held[run_id].look_at = 0.0
        for run_id in explained:
            self._announcer.changed(run_id, mine[run_id].seq)

    def _sweep(self, link: Link) -> None:
        """Count children of expired leases as lost, and end leases without a host on silent nodes, once the database
        has been up long enough to trust that."""
        now = time.monotonic()
        if now < self._schedule.sweep or now - link.up_since < CHILD_TTL_S:
            return
        self._schedule.sweep = now + SWEEP_S
        for run_id, held in self.held.items():
            lost, unclaimed = leases.expire(link.work, run_id), end_unclaimed(link.work, run_id)
            if lost or unclaimed:
                log.warning("leases_expired", run_id=run_id, leases=lost, unclaimed=unclaimed)
                held.look_at = 0.0

    def _drain(self, link: Link) -> None:
        """Tell the runs held here what drains want of them, and silent nodes."""
        conn, now = link.work, time.monotonic()
        if now < self._schedule.drain:
            return
        self._schedule.drain = now + DRAIN_S
        mine = {run_id: held.session for run_id, held in self.held.items() if held.session is not None}
        if not mine:
            return
        trusted = now - link.up_since > TRUSTED_S
        for run_id in request_drains(conn, mine, runs.database_now(conn), trusted=trusted):
            self.held[run_id].look_at = 0.0

    def _wait(self, listen: Connection) -> None:
        """Rest until something is due or a producer says that there are facts."""
        times = [t for held in self.held.values() for t in (held.look_at, held.push_at)]
        wait_s = min([self._schedule.claim, self._schedule.renew, *times]) - time.monotonic()
        for note in listen.notifies(timeout=max(0.0, min(wait_s, POLL_S)), stop_after=1):
            self._hinted(note.payload)
        for note in listen.notifies(timeout=0):
            self._hinted(note.payload)

    def _hinted(self, payload: str) -> None:
        held = self.held.get(int(payload)) if payload.isdigit() else None
        if held is None:
            self._schedule.claim = 0.0
        else:
            held.look_at = 0.0
