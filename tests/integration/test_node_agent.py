"""The real node agent and device worker with fake children: commands in order, refusals, losses, intervals."""

import itertools
import json
import os
import signal
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from flexmarl.contracts.commands import Accumulate, BindPolicy, HostLease, LoadWeights, OptimizerStep, WriteCheckpoint
from flexmarl.contracts.engine_states import EngineState
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control import commands, engines, leases, runs
from flexmarl.store.data import checkpoints, steps
from flexmarl.store.reads import engine_rows
from tests.support.machine import Machine, wait_for
from tests.support.store_story import DIGEST, Story
from workers.nodes.lanes import TTL_S

pytestmark = pytest.mark.services


class Node(Machine):
    """A machine whose trainer and engine serve, with a log of what they were told."""

    def up(self) -> None:
        self.log = Path(self.environment["FLEXMARL_HOME"]) / "children.jsonl"
        self.environment["FAKE_CHILD_LOG"] = str(self.log)
        self.start_node()
        self.address = wait_for(self._address)
        self.start()
        self.lease_of = self._lease_both()
        wait_for(lambda: self._push_hosts() or self._serving() == 2)

    def _serving(self) -> int:
        row = self.story.conn.execute("SELECT count(*) FROM store.lease WHERE endpoint <> ''").fetchone()
        return row[0] if row else 0

    def _address(self) -> str:
        row = self.story.conn.execute("SELECT address FROM store.node WHERE name = 'box'").fetchone()
        return row[0] if row else ""

    def _lease_both(self) -> dict[DeviceUse, int]:
        from flexmarl.contracts.commands import RequestDevices

        no = self.story.issue(RequestDevices(pool="default", engines=1, trainers=1))
        free = leases.supply(self.story.conn).free
        wanted = [(free[0].id, DeviceUse.ENGINE), (free[1].id, DeviceUse.TRAINER)]
        granted = leases.grant(self.story.conn, self.story.lease, no, wanted)
        for one in granted:
            self.story.issue(HostLease(lease_id=one.lease_id, device_id=one.device_id, use=one.use))
        return {one.use: one.lease_id for one in granted}

    def _push_hosts(self) -> None:
        self.push()

    @property
    def trainer(self) -> int:
        return self.lease_of[DeviceUse.TRAINER]

    @property
    def engine(self) -> int:
        return self.lease_of[DeviceUse.ENGINE]

    def incarnation(self, lease_id: int) -> str:
        child = leases.endpoint(self.story.conn, lease_id)
        return child.incarnation if child else ""

    def post(self, body: dict, key: str = "key") -> int:
        request = urllib.request.Request(
            f"http://{self.address}/v1/commands",
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def tell(self, *orders, push: bool = True) -> list[int]:
        numbers = self.story.decide(*orders)
        if push:
            for no, order in zip(numbers, orders, strict=True):
                assert self.post({"run_id": 1, "no": no, "lease_id": order.lease_id}) == 202
        return numbers

    def status(self, no: int) -> str:
        return self.story.conn.execute("SELECT status FROM store.command WHERE no = %s", [no]).fetchone()[0]

    def ended(self, numbers: list[int]) -> list[str]:
        def look() -> list[str]:
            found = [self.status(no) for no in numbers]
            return [] if {"open", "taken"} & set(found) else found

        return wait_for(look)

    def told(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def bind(self, version: int | None = None) -> BindPolicy:
        return BindPolicy(lease_id=self.trainer, policy="solver", version=version)

    def accumulate(self, no: int, accumulator: str, entropy: float = 0.0) -> Accumulate:
        return Accumulate(
            lease_id=self.trainer, policy="solver", micro_batch=no, accumulator=accumulator, entropy_coef=entropy
        )


@pytest.fixture
def node(store_conn: psycopg.Connection, store_url: str, redis_url: str, tmp_path: Path) -> Iterator[Node]:
    machine = Node(Story(store_conn).start(), store_url, redis_url, tmp_path)
    machine.up()
    yield machine
    machine.stop()


def test_one_cohort_from_bind_to_served_weights(node):
    [bound] = node.tell(node.bind())
    assert node.ended([bound]) == ["done"]
    accumulator = f"0:{node.incarnation(node.trainer)}"
    node.story.settle(0, 1, 2)
    for no in range(3):
        node.story.cut(no, no)
    step = OptimizerStep(
        lease_id=node.trainer, policy="solver", accumulator=accumulator, micro_batches=(0, 1, 2), next_version=1,
        step=1, learning_rate=0.1,
    )  # fmt: skip
    pins = {"solver": PolicyPin(version=1, digest=DIGEST)}
    numbers = node.tell(
        *(node.accumulate(no, accumulator) for no in range(3)),
        step,
        WriteCheckpoint(lease_id=node.trainer, label="last", step=1, pins=pins),
    )
    assert node.ended(numbers) == ["done"] * 5
    verbs = [(line["verb"], line.get("micro_batch")) for line in node.told()]
    assert verbs == [
        ("bind", None), ("accumulate", 0), ("accumulate", 1), ("accumulate", 2), ("step", None), ("checkpoint", None),
    ]  # fmt: skip
    newest = steps.newest_versions(node.story.conn, 1)["solver"]
    assert newest.version == 1
    load = LoadWeights(lease_id=node.engine, policy="solver", version=1, digest=newest.digest)
    assert node.ended(node.tell(load)) == ["done"]
    engine = wait_for(lambda: next((row for row in engine_rows.engines(node.story.conn, 1) if row.told), None))
    assert (engine.state, engine.told.running, engine.told.waiting, engine.told.slots) == (EngineState.ACTIVE, 3, 2, 8)
    [route] = engines.routes(node.story.conn, 1)
    assert route.holds == {"solver": PolicyPin(version=1, digest=newest.digest)}
    assert [one.path for one in checkpoints.of_run(node.story.conn, 1)] == ["/checkpoints/last"]
    kinds = node.story.kinds()
    assert kinds.count("micro_batch_accumulated") == 3
    assert {"policy_bound", "step_committed", "checkpoint_written", "weights_served"} <= set(kinds)


@pytest.mark.full
def test_commands_are_carried_out_in_order_whatever_the_pushes_say(node):
    numbers = node.tell(*(node.bind() for _ in range(1)), push=False)
    numbers += node.tell(*(node.bind(0) for _ in range(5)), push=False)
    for no in reversed(numbers):
        node.post({"run_id": 1, "no": no, "lease_id": node.trainer})
    node.ended(numbers)
    assert [line["version"] for line in node.told()] == [-1, 0, 0, 0, 0, 0]


def test_a_lost_push_is_made_good_by_the_sweep(node):
    began = time.monotonic()
    [no] = node.tell(node.bind(), push=False)
    assert node.ended([no]) == ["done"]
    assert time.monotonic() - began < 30


def test_a_refusal_fails_the_command_with_its_code_and_the_lane_goes_on(node):
    node.ended(node.tell(node.bind()))
    node.story.settle(0)
    node.story.cut(0, 0)
    stale, nan, missing = node.tell(
        node.accumulate(0, "0:somebody"),
        node.accumulate(0, f"0:{node.incarnation(node.trainer)}", entropy=10.0),
        node.accumulate(7, f"0:{node.incarnation(node.trainer)}"),
    )
    [good] = node.tell(node.accumulate(0, f"0:{node.incarnation(node.trainer)}"))
    assert node.ended([stale, nan, missing, good]) == ["failed", "failed", "failed", "done"]
    node.story.decide()
    failures = {e.command_no: (e.code, e.retryable) for e in node.story.handled if e.kind == "command_failed"}
    assert failures == {
        stale: ("other_accumulator", True),
        nan: ("nonfinite", False),
        missing: ("no_micro_batch", False),
    }


def test_a_child_lost_in_work_gives_the_command_back_to_its_successor(node):
    node.ended(node.tell(node.bind()))
    before = node.incarnation(node.trainer)
    pid = node.story.conn.execute("SELECT pid FROM store.lease WHERE id = %s", [node.trainer]).fetchone()[0]
    os.kill(pid, signal.SIGSTOP)  # it neither answers nor ends
    [no] = node.tell(node.bind(0))
    wait_for(lambda: node.status(no) == "taken")
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    assert node.ended([no]) == ["done"]
    assert time.monotonic() - began < TTL_S - 2  # given back, not waited for
    assert node.told()[-1]["incarnation"] != before
    assert node.story.count("policy_version") == 1
    assert "child_lost" in node.story.kinds()


def test_what_comes_while_the_child_works_is_taken_then_and_carried_out_behind_it(node):
    node.ended(node.tell(node.bind()))
    pid = node.story.conn.execute("SELECT pid FROM store.lease WHERE id = %s", [node.trainer]).fetchone()[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        [first] = node.tell(node.bind(0))
        wait_for(lambda: node.status(first) == "taken")
        [second] = node.tell(node.bind(0))
        wait_for(lambda: node.status(second) == "taken")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert node.ended([first, second]) == ["done"] * 2


def test_a_killed_agent_leaves_its_command_to_the_next_one(node):
    node.ended(node.tell(node.bind()))
    pid = node.story.conn.execute("SELECT pid FROM store.lease WHERE id = %s", [node.trainer]).fetchone()[0]
    os.kill(pid, signal.SIGSTOP)
    [no] = node.tell(node.bind(0))
    wait_for(lambda: node.status(no) == "taken")
    node.processes[0].kill()
    os.kill(pid, signal.SIGCONT)
    node.story.lapse(no)
    node.start_node()
    assert node.ended([no]) == ["done"]
    takes = node.story.conn.execute("SELECT takes FROM store.command WHERE no = %s", [no]).fetchone()[0]
    assert takes == 2


def test_health_names_children_to_who_has_the_cluster_key_alone(node):
    def health(**headers: str) -> dict:
        request = urllib.request.Request(f"http://{node.address}/health", headers=headers)
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.loads(answer.read())

    node.ended(node.tell(node.bind()))
    assert health() == health(Authorization="Bearer wrong") == {"status": "ok"}
    about = health(Authorization="Bearer key")
    assert (about["status"], about["node"]) == ("ok", "box")
    assert node.incarnation(node.trainer) in about["children"]


def test_the_endpoint_asks_for_the_cluster_key(node):
    assert node.post({"run_id": 1, "no": 1}, key="wrong") == 401
    assert node.post({"run_id": "x"}) == 422


@pytest.mark.full
def test_busy_intervals_arrive_once(node):
    node.ended(node.tell(node.bind()))
    node.ended(node.tell(*(node.bind(0) for _ in range(3))))

    def stored() -> list[tuple[int]]:
        return node.story.conn.execute("SELECT ord FROM store.interval ORDER BY ord").fetchall()

    wait_for(lambda: len(stored()) >= 1)
    assert [row[0] for row in stored()] == list(range(len(stored())))


def test_a_lease_of_an_ended_run_whose_worker_is_gone_is_ended_by_the_agent(node):
    node.processes[1].kill()
    from flexmarl.contracts.status import RunStatus

    node.story.status = RunStatus.KILLED
    node.story.decide()
    node.story.conn.execute("UPDATE store.lease SET expires_at = clock_timestamp() - interval '1 s'")
    wait_for(lambda: len(leases.supply(node.story.conn).free) >= 2)


@pytest.mark.full
def test_decision_to_started_work_is_quick(node):
    """Not a benchmark: a bound that only a lost hint (0.5 s) would break."""
    node.ended(node.tell(node.bind()))
    delays = []
    for _ in range(20):
        decided = runs.database_now(node.story.conn)
        [no] = node.tell(node.bind(0))
        node.ended([no])
        delays.append(node.told()[-1]["at"] - decided)
    print(f"\ndecision to child: median {statistics.median(delays) * 1e3:.1f} ms, max {max(delays) * 1e3:.1f} ms")
    assert statistics.median(delays) < 0.25


@pytest.mark.full
def test_a_second_agent_of_the_name_ends_the_first(node):
    second = node.start_node()
    assert node.processes[0].wait(60) == 1
    assert second.poll() is None


@pytest.mark.full
def test_sigterm_ends_the_agent_quickly(node):
    began = time.monotonic()
    node.processes[0].terminate()
    assert node.processes[0].wait(60) == 0
    assert time.monotonic() - began < 30
    assert list(itertools.islice(commands.open_on_node(node.story.conn, "box"), 1)) == []
