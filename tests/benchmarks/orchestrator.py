"""The orchestrator's own speed: the core in memory, and the driver with every decision durable in PostgreSQL.

One train step of a large team after another: every command is answered by one fact, so the mix of facts is that of a
run. `core_*` and `overlap_*`: `handle` alone, in the two disturbed runs that `orchestrator_core` describes; the start
of 3,000 devices is reported apart. `*_events_per_s` is facts over the seconds spent in calls; `*_events_per_cpu_s`
counts the seconds this thread ran, all between the calls included; `*_other_than_weights_per_s` leaves out the facts
that are most. `KIND_p99_ms` and `KIND_max_ms` are those of the calls with facts of one kind.
`driver_*`: `turns` as the driver calls it - read facts ahead, decide, move them to the log with commands and state in
one transaction, fsync - on a store whose facts were put there before, in the mix of a step; `driver_rates` tells each
kind apart. An event is a fact in the log; each decision of `driver_single_*` is durable before the next fact is put.
`*_cpu_*`: seconds of the driver's thread and of its server process, which work side by side.
`recovery_s`: the slowest of several takeovers of a run amid its steps: read snapshot and tail,
replay, compare with the rows. The server runs on this machine, as with `manage.py up`.

`python tests/benchmarks/orchestrator.py [--part core|driver] [--quick] [--json FILE]`
"""

import argparse
import logging
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

import harness
import orchestrator_core
import psutil
import psycopg
import structlog

from flexmarl.contracts import events as e
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.collecting import collected_seldom
from flexmarl.controlplane.runs.driver.session import RunSession
from flexmarl.controlplane.runs.driver.turning import turns
from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.orchestrator import Decision, Orchestrator
from flexmarl.store import schema
from flexmarl.store.control import inbox, runs
from flexmarl.store.control.runs import RunLease
from tests.benchmarks.orchestrator_load import Cluster, Size, team

LARGE = Size()
QUICK = Size(agents=16, devices=60, groups=48)
ADMITTED = Size(agents=16, devices=2, groups=784)
"""What the specification admits: its run is recovered through the driver's own door."""
OWNER = "bench"


@contextmanager
def database() -> Iterator[psycopg.Connection]:
    """Run an own durable server with the store's schema."""
    folder = Path(tempfile.mkdtemp(prefix="flexmarl-bench-"))
    folder.chmod(0o711)  # the service account passes through
    server = EmbeddedPostgres(Home(folder / "home"))
    try:
        with psycopg.connect(server.start(), autocommit=True) as conn:
            schema.apply(conn)
            yield conn
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def held_run(conn: psycopg.Connection, run_id: int, spec: dict[str, object]) -> RunLease:
    """Make a run and hold it."""
    runs.create_run(conn, run_id, spec, RunStatus.DRAFT)
    conn.execute(
        "UPDATE store.run_state SET owner = %s, fence = 1, lease_until = 'infinity' WHERE run_id = %s", [OWNER, run_id]
    )
    return RunLease(run_id, OWNER, 1)


@dataclass(frozen=True)
class Drained:
    """Facts that were handled, and what that took."""

    events: int = 0
    seconds: float = 0.0
    thread_s: float = 0.0
    server_s: float = 0.0

    def __add__(self, other: "Drained") -> "Drained":
        return Drained(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class DrivenRun:
    """A run behind the driver's session; its decisions are seen as they are made."""

    def __init__(self, conn: psycopg.Connection, session: RunSession, cluster: Cluster) -> None:
        self.conn, self.session, self.cluster = conn, session, cluster
        self.decided: list[Decision] = []
        self._put = 0
        self._server = psutil.Process(conn.info.backend_pid)
        handle = session.core.handle

        def seen(event: e.Event, now: float) -> Decision:
            self.decided.append(handle(event, now))
            return self.decided[-1]

        session.core.handle = seen  # type: ignore[method-assign]

    def put(self, wave: Sequence[e.Event]) -> None:
        """Put facts into the inbox, as workers did before."""
        for first in range(0, len(wave), 4096):
            keyed = [(f"{self._put + i}", event) for i, event in enumerate(wave[first : first + 4096])]
            self._put += len(keyed)
            inbox.put_events(self.conn, self.session.lease.run_id, keyed)
        if len(wave) > 1:
            self.conn.execute("CHECKPOINT")

    def drain(self) -> "Drained":
        """Turn until nothing waits."""
        handled, began, thread, server = 0, time.perf_counter(), time.thread_time(), self._server_s()
        for turn in turns(self.session, self.conn):
            handled += turn.events
        seconds = time.perf_counter() - began
        return Drained(handled, seconds, time.thread_time() - thread, self._server_s() - server)

    def _server_s(self) -> float:
        used = self._server.cpu_times()
        return used.user + used.system

    def answers(self) -> list[e.Event]:
        """Carry out what was decided since the last call."""
        wave = self.cluster.answers(self.decided)
        self.decided.clear()
        return wave


def driven(conn: psycopg.Connection, run_id: int, size: Size, train_steps: int) -> DrivenRun:
    """Put a large run, which no specification admits yet, behind a session."""
    spec = team(size, train_steps)
    session = RunSession(held_run(conn, run_id, {"agents": {}}), Orchestrator(spec), 0, 0, time.time())
    return DrivenRun(conn, session, Cluster(spec, size))


def measure_batches(report: harness.Report, conn: psycopg.Connection, size: Size, train_steps: int) -> None:
    """Drive whole train steps in full batches."""
    run = driven(conn, 1, size, train_steps)
    wave: list[e.Event] = [e.RunVerb(verb=e.Verb.START)]
    total, measured = Drained(), False
    rates: dict[str, list[float]] = defaultdict(list)
    while wave:
        run.put(wave)
        # From the second step's first group to its last weights: one step as it is, no load of the step before.
        measured = measured or (run.session.core.state.step > 0 and wave[0].kind == "group_settled")
        drained = run.drain()
        if measured:
            total += drained
            rates[wave[0].kind].append(drained.events / drained.seconds)
        wave = run.answers()
    report.figures |= {
        "driver_events_per_s": total.events / total.seconds,
        "driver_events_per_cpu_s": total.events / total.thread_s,
        "driver_server_events_per_cpu_s": total.events / total.server_s,
    }
    report.settings["driver_events"] = total.events
    report.settings["driver_rates"] = {kind: round(statistics.median(own)) for kind, own in sorted(rates.items())}


def measure_single(report: harness.Report, conn: psycopg.Connection, size: Size, decisions: int) -> None:
    """Drive fact by fact: each is decided and durable before the next is put."""
    run = driven(conn, 2, size, 1_000_000)
    wave: list[e.Event] = [e.RunVerb(verb=e.Verb.START)]
    while run.session.core.state.lifecycle.status is not RunStatus.RUNNING:
        run.put(wave)
        run.drain()
        wave = run.answers()
    drained: list[Drained] = []
    while len(drained) < decisions:
        for event in wave:
            run.put([event])
            drained.append(run.drain())
        wave = run.answers()
    total, seconds = sum(drained, Drained()), sorted(one.seconds for one in drained)
    report.figures |= {
        "driver_single_per_s": total.events / total.seconds,
        "driver_single_p99_ms": seconds[int(len(seconds) * 0.99)] * 1e3,
        "driver_single_cpu_ms": total.thread_s / total.events * 1e3,
        "driver_single_server_cpu_ms": total.server_s / total.events * 1e3,
    }


def measure_recovery(report: harness.Report, conn: psycopg.Connection, train_steps: int) -> None:
    """Take a run over again and again while it goes on."""
    spec = team(ADMITTED, train_steps)
    lease = held_run(conn, 3, spec.model_dump(mode="json"))
    run = DrivenRun(conn, RunSession.load(conn, lease), Cluster(spec, ADMITTED))
    wave: list[e.Event] = [e.RunVerb(verb=e.Verb.START)]
    taken: list[float] = []
    while wave:
        run.put(wave)
        run.drain()
        began = time.perf_counter()
        RunSession.load(conn, lease)
        taken.append(time.perf_counter() - began)
        wave = run.answers()
    report.figures |= {"recovery_s": max(taken), "recovery_median_s": statistics.median(taken)}
    report.figures["recovery_log_events"] = float(run.session.seq)


def options(parser: argparse.ArgumentParser) -> None:
    """One part can be measured apart."""
    parser.add_argument("--part", choices=["all", "core", "driver"], default="all")


def main() -> None:
    """Measure the core first: the server is not up yet."""
    report = harness.start("orchestrator", __doc__ or "", options)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    quick, part = report.quick, report.settings["part"]
    size = QUICK if quick else LARGE
    if part != "driver":
        orchestrator_core.measure(report, size, 2 if quick else 3)
    if part != "core":
        with database() as conn, collected_seldom():  # as the driver does
            measure_batches(report, conn, size, 2)
            measure_single(report, conn, QUICK, 200 if quick else 2000)
            measure_recovery(report, conn, 2 if quick else 20)
    report.finish()


if __name__ == "__main__":
    main()
