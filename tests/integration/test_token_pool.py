"""A pool of several nodes with tokens: a run takes devices of all of them, and one that loses its home costs nothing.

Its nodes read weights from each other and reach each other's engines. What trainers make on a temporary home lies with
the installation before it is told of, so an ordered run ends in the bits that it has on the installation's own node.
"""

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.support.bits import Bits, bits_of
from tests.support.door_node import DoorNode
from tests.support.machine import wait_for
from tests.support.promised import kept_its_promises
from tests.support.system import MANY_DEVICES, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

WITHIN_S = 240.0
POOL, NODES = "pair", ("pair-1", "pair-2")
STEPS = 4
ORDERED = {
    "seed": 7,
    "budget": {"train_steps": STEPS, "target": None},
    "evaluation": {"every_steps": 100, "tasks": 8},
    "batch": {"tasks_per_step": 4, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
    "mechanisms": {"ordered": True},
}
RESOURCES = {"rollout_devices": 1, "training_devices": 2}
"""More devices than one of the nodes has."""
TRAINERS = """
SELECT DISTINCT d.node FROM store.lease l JOIN store.device d ON d.id = l.device_id
WHERE l.run_id = %s AND l.state = 'held' AND l.use = %s ORDER BY d.node
"""


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(MANY_DEVICES)


class TemporaryNode:
    """A node with a token, whose home can be lost."""

    def __init__(self, system: System, name: str, folder: Path) -> None:
        made = system.api().post("/node-tokens", {"node": name, "pool": POOL})
        self.token = made["id"]
        self._lives = [DoorNode(folder / f"{name}-{life}", system.url, made["secret"], FLEXMARL_TEMPORARY_HOME="1")
                       for life in (1, 2)]  # fmt: skip

    @property
    def now(self) -> DoorNode:
        return self._lives[0]

    def lose_home(self) -> None:
        """Kill all of it, remove what it had, and let it begin anew."""
        lost = self._lives.pop(0)
        for process in lost.processes.values():
            process.send_signal(signal.SIGKILL)
        for process in lost.processes.values():
            process.wait()
        shutil.rmtree(lost.home)
        self.now.__enter__()


@pytest.fixture(scope="module")
def nodes(system: System, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, TemporaryNode]]:
    api, folder = system.api(), tmp_path_factory.mktemp("pair")
    with ExitStack() as stack:
        nodes = {name: TemporaryNode(system, name, folder) for name in NODES}
        for node in nodes.values():
            node.now.__enter__()
            stack.callback(lambda node=node: node.now.__exit__())
        wait_for(lambda: nodes.keys() <= {row["name"] for row in api.get("/nodes")["results"]}, WITHIN_S)
        yield nodes
    for node in nodes.values():
        api.call("DELETE", f"/node-tokens/{node.token}")


def submit(system: System, pool: str) -> dict[str, object]:
    resources = {**RESOURCES, "rollout_pool": pool, "training_pool": pool}
    return system.api().create_run(name=pool, template="hot_cold", overrides={**ORDERED, "resources": resources})


def ended(system: System, run: dict[str, object]) -> Bits:
    found = system.api().finish(str(run["id"]), WITHIN_S)
    assert (found["status"], found["step"]) == ("completed", STEPS), found["reason_text"]
    kept_its_promises(system, found["no"])
    return bits_of(system.database_url, found["no"])


def using(system: System, run: dict[str, object], use: str) -> list[str]:
    """List the nodes that hold leases of a run for a use."""
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        return [node for (node,) in conn.execute(TRAINERS, [run["no"], use]).fetchall()]


def test_a_run_on_two_nodes_of_which_one_loses_its_home_ends_in_its_own_bits(
    system: System, nodes: dict[str, TemporaryNode]
) -> None:
    run = submit(system, POOL)
    system.api().wait(run["id"], lambda row: row["step"] >= 2, WITHIN_S)
    used = {*using(system, run, "trainer"), *using(system, run, "engine")}
    assert used == set(NODES), "neither has devices enough"
    struck = using(system, run, "trainer")[0]
    nodes[struck].lose_home()
    there = ended(system, run)
    assert there == ended(system, submit(system, "default")), "which runs last: equal contents have equal names"
