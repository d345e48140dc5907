"""Two hosts in networks of their own share a pool: they reach each other and one address of the installation.

Neither has a secret of it nor its folder; the way of the first is 50 ms there and back and loses one packet in a
hundred. An ordered run over both ends in the bits of the installation's own node, though processes of both are killed
and their ways to the installation are cut, and nothing is lost or doubled.
"""

import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.support.bits import Bits, bits_of
from tests.support.door_node import COMMANDS, DoorNode
from tests.support.far_hosts import LONG_WAY, WITHIN_S, allowed_hosts
from tests.support.far_link import FarLink, can_be_apart, host_apart
from tests.support.machine import wait_for
from tests.support.promised import kept_its_promises
from tests.support.system import TERMINAL, System

pytestmark = [
    pytest.mark.full,
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not can_be_apart(), reason="networks of their own need root and iproute2"),
]

NUMBERS = (11, 12)
BETWEEN = {11: "10.78.11.1", 12: "10.78.11.2"}
"""Addresses of the hosts on the network that they share."""
STEPS, STRIKES = 12, 10
ORDERED = {
    "seed": 7,
    "budget": {"train_steps": STEPS, "target": None},
    "evaluation": {"every_steps": 100, "tasks": 8},
    "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
    "mechanisms": {"ordered": True},
}


@dataclass(frozen=True, slots=True)
class PoolHost:
    link: FarLink
    node: DoorNode


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    numbers = range(min(NUMBERS), max(NUMBERS) + 1)
    environment = {"FLEXMARL_ALLOWED_HOSTS": allowed_hosts(numbers), "FLEXMARL_CPU_SHARES": "3"}
    with System(tmp_path_factory.mktemp("here") / "home", environment=environment) as system:
        yield system


@pytest.fixture(scope="module")
def hosts(system: System, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PoolHost]]:
    folder, api = tmp_path_factory.mktemp("pool"), system.api()
    with ExitStack() as stack:
        ways = {number: stack.enter_context(host_apart(f"pool-{number}", number, system.home)) for number in NUMBERS}
        joined(*NUMBERS)
        found = []
        for number, (ours, begins) in ways.items():
            own = folder / str(number)
            own.mkdir()
            link = stack.enter_context(FarLink(own, system.url, ours, **(LONG_WAY if number == NUMBERS[0] else {})))
            token = api.post("/node-tokens", {"node": f"pool-{number}", "pool": "apart"})["secret"]
            settings = {"SSL_CERT_FILE": str(link.certificate), "FLEXMARL_CHILD_HOST": BETWEEN[number]}
            node = DoorNode(own / "home", link.url, token, begins=begins, **settings)
            found.append(PoolHost(link, stack.enter_context(node)))
        wait_for(
            lambda: len([row for row in api.get("/nodes")["results"] if row["name"][:5] == "pool-"]) == 2, WITHIN_S
        )
        yield found


def joined(one: int, other: int) -> None:
    """Make a network of two hosts, which goes with either."""
    ends = {one: f"fm{one}p", other: f"fm{other}p"}
    made = f"ip link add {ends[one]} netns pool-{one} type veth peer name {ends[other]} netns pool-{other}"
    subprocess.run(made.split(), check=True)
    for number, end in ends.items():
        for step in (f"addr add {BETWEEN[number]}/30 dev {end}", f"link set {end} up"):
            subprocess.run(["ip", "-n", f"pool-{number}", *step.split()], check=True)


def ended(system: System, run: dict[str, object]) -> Bits:
    found = system.api().finish(str(run["id"]), WITHIN_S)
    assert (found["status"], found["step"]) == ("completed", STEPS), found["reason_text"]
    kept_its_promises(system, found["no"])
    return bits_of(system.database_url, found["no"])


def submit(system: System, pool: str) -> dict[str, object]:
    resources = {"rollout_devices": 1, "training_devices": 2, "rollout_pool": pool, "training_pool": pool}
    return system.api().create_run(name=pool, template="hot_cold", overrides={**ORDERED, "resources": resources})


def test_an_ordered_run_over_both_is_what_it_is_here_through_kills_and_partitions(
    system: System, hosts: list[PoolHost]
) -> None:
    rng, api = random.Random(0), system.api()
    run = submit(system, "apart")
    api.wait(run["id"], lambda row: row["step"] >= 1, WITHIN_S)
    for _ in range(STRIKES):
        step, host = api.run(run["id"])["step"], rng.choice(hosts)
        if rng.random() < 0.5:
            host.link.cut(rng.uniform(5.0, 20.0))
        else:
            host.node.kill(rng.choice(list(COMMANDS)))
        found = api.wait(run["id"], lambda row, step=step: row["step"] > step or row["status"] in TERMINAL, WITHIN_S)
        assert found["status"] not in TERMINAL or found["step"] == STEPS, found["reason_text"]
    there = ended(system, run)
    assert there == ended(system, submit(system, "default"))
