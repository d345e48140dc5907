"""The runs on some of the simulated hosts: their engines and trainers answer at once or after a moment, without models.

`python tests/benchmarks/many_nodes_runs.py` reads its orders as one JSON line. Each host of a run has a device worker,
lanes of commands and rollout workers as tests have them (`tests.support.scripted_workers`); here they ask the control
plane over HTTP with the host's token, and hear of commands as news.
"""

import json
import sys
import threading
import time
from typing import Any, cast

import psycopg
from harness import ROOT  # noqa: F401 - the roots of the sources

from flexmarl.contracts import commands as c
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.runs.driver.pushing import BrokerPush, NodePush
from flexmarl.store.control import commands, leases
from flexmarl.store.data import ready_commands
from tests.support.scripted_workers import FakeChild, Pushed, ScriptedWorkers
from workers import hosting
from workers.door.address import DoorAddress
from workers.door.broker import DoorNews, News
from workers.door.client import Door

PLAY_S, TRAIN_S = 6.0, 1.0
"""What groups of one command, and a micro-batch or a step, take: a step of a run takes about a quarter of a minute."""


class RunHost(ScriptedWorkers):
    """One host that carries out what a run asks for."""

    def __init__(self, address: DoorAddress, spec: ExperimentSpec) -> None:
        self.pushed, self.spec = Pushed(), spec
        self.children: dict[int, FakeChild] = {}
        self.errors: list[BaseException] = []
        self.away = self.steps = 0
        self._address = address
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._known: set[tuple[int, int]] = set()

    def begin(self) -> None:
        """Listen to news and work."""
        for role in ("device", "rollout", "node"):
            DoorNews(self._address, role, self._heard, self.errors.append).start()  # type: ignore[arg-type]
        for target in (self._broker_loop, self._broker_loop, self._node_loop):
            self._spawn(target)

    def _spawn(self, target: Any, *args: Any) -> None:
        def guarded() -> None:
            door = cast("psycopg.Connection", Door(self._address))
            while not self._stop.is_set():
                try:
                    target(door, *args)
                    return
                except psycopg.OperationalError:
                    self.away += 1
                except BaseException as error:  # told at the end
                    self.errors.append(error)
                time.sleep(0.5)

        threading.Thread(target=guarded, daemon=True).start()

    def _heard(self, news: News) -> None:
        if news.hint:
            for lease_id in list(self.children):
                self.pushed.nodes.put(NodePush("", 0, 0, lease_id))
        elif (news.run_id, news.no) not in self._known:
            self._known.add((news.run_id, news.no))
            self.pushed.broker.put(BrokerPush(news.queue, news.actor, news.run_id, news.no))

    def _broker_loop(self, conn: psycopg.Connection) -> None:
        while True:
            push = self.pushed.broker.get()
            try:
                ready = ready_commands.take(conn, push.run_id, push.no, 30.0)
                if ready is not None and isinstance(ready.taken.command, c.HostLease):
                    self._spawn(self._host, ready.taken)
                elif ready is not None:
                    time.sleep(PLAY_S)
                    self._play(conn, ready)
            finally:
                self._known.discard((push.run_id, push.no))

    def _host(self, conn: psycopg.Connection, taken: commands.Taken) -> None:
        held = leases.take_hosting(conn, taken, hosting.TTL_S)
        if held is None or held.releasing:
            if held is not None:
                leases.end(conn, taken, held, "released")
            return
        self._new_child(conn, held)
        while not self._stop.wait(hosting.RENEW_S):
            renewal = leases.renew(conn, held, hosting.TTL_S)
            if renewal.held and not renewal.releasing:
                continue
            self.children.pop(held.lease_id, None)
            if renewal.held:
                leases.end(conn, taken, held, "released")
            return

    def _node_loop(self, conn: psycopg.Connection) -> None:
        while True:
            push = self.pushed.nodes.get()
            while (taken := self._next(conn, push.lease_id)) is not None:
                if isinstance(taken[0].command, c.Accumulate | c.OptimizerStep):
                    time.sleep(TRAIN_S)
                self.steps += isinstance(taken[0].command, c.OptimizerStep)
                self._carry_out(conn, *taken)


def main() -> None:
    """Work until standard input ends; answer each line with what was done since."""
    orders = json.loads(sys.stdin.readline())
    spec = ExperimentSpec.model_validate(orders["spec"])
    hosts = [RunHost(DoorAddress(orders["url"], token), spec) for token in orders["tokens"]]
    for host in hosts:
        host.begin()
    for _ in sys.stdin:
        errors = [repr(error) for host in hosts for error in host.errors]
        said = {"steps": sum(host.steps for host in hosts), "away": sum(host.away for host in hosts), "errors": errors}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
