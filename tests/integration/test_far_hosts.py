"""Hosts in networks of their own: nothing of the installation but an address and a token, and a long way to it.

They reach one address, where TLS, 50 ms there and back and one lost packet in a hundred stand before the web service;
the installation's folder is empty for them. Runs there are what runs here are, whatever is killed and whenever the way
is cut.
"""

import random
from collections.abc import Iterator

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.bits import bits_of
from tests.support.counting import assert_accounted
from tests.support.door_node import COMMANDS, DoorNode
from tests.support.far_link import FarLink, address_for, can_be_apart, host_apart
from tests.support.machine import wait_for
from tests.support.system import TERMINAL, System

pytestmark = [
    pytest.mark.full,
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not can_be_apart(), reason="networks of their own need root and iproute2"),
]

WITHIN_S = 600.0
NETWORK = 1
STRIKES = 50
ORDERED = {
    "seed": 7,
    "budget": {"train_steps": 6, "target": None},
    "evaluation": {"every_steps": 3, "tasks": 16},
    "batch": {"tasks_per_step": 12, "episodes_per_task": 4, "micro_batch_groups": 3, "rollout_groups": 4},
    "mechanisms": {"ordered": True},
}
ENDLESS = {
    "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
    "budget": {"train_steps": 100_000, "target": None},
    "evaluation": {"every_steps": 20, "tasks": 8},
}
FAR = {"resources": {"rollout_pool": "apart", "training_pool": "apart"}}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    hosts = {"FLEXMARL_ALLOWED_HOSTS": f"127.0.0.1,localhost,{address_for(NETWORK)}"}
    with System(tmp_path_factory.mktemp("here") / "home", environment=hosts) as system:
        yield system


@pytest.fixture(scope="module")
def stage(system: System, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FarLink, DoorNode]]:
    folder = tmp_path_factory.mktemp("apart")
    made = system.api().post("/node-tokens", {"node": "apart-1", "pool": "apart"})
    with (
        host_apart("flexmarl-apart", NETWORK, system.home) as (ours, begins),
        FarLink(folder, system.url, ours, delay_s=0.025, loss=0.01) as link,
        DoorNode(folder / "home", link.url, made["secret"], begins=begins, SSL_CERT_FILE=str(link.certificate)) as node,
    ):
        names = lambda: {row["name"] for row in system.api().get("/nodes")["results"]}  # noqa: E731
        wait_for(lambda: "apart-1" in names(), WITHIN_S)
        yield link, node


def test_an_ordered_run_there_ends_in_the_bits_that_it_has_here(
    system: System, stage: tuple[FarLink, DoorNode]
) -> None:
    api = system.api()
    found = []
    for where in ({}, FAR):
        run = api.create_run(name="ordered", template="hot_cold", overrides={**ORDERED, **where})
        ended = api.finish(run["id"], WITHIN_S)
        assert (ended["status"], ended["step"]) == ("completed", 6), ended["reason_text"]
        found.append(bits_of(system.database_url, run["no"]))
    here, there = found
    assert len(here.samples) > 100
    assert there == here
    assert stage[0].passed > 1_000_000, "the run went over the long way"


def test_nothing_is_lost_or_doubled_through_kills_and_partitions(
    system: System, stage: tuple[FarLink, DoorNode]
) -> None:
    link, node = stage
    rng, api = random.Random(0), system.api()
    run = api.create_run(name="struck", template="reference_game", overrides={**ENDLESS, **FAR})
    api.wait(run["id"], lambda row: row["step"] >= 2, WITHIN_S)
    for _ in range(STRIKES):
        step = api.run(run["id"])["step"]
        if rng.random() < 0.5:
            link.cut(rng.uniform(5.0, 60.0))
        else:
            node.kill(rng.choice(list(COMMANDS)))
        found = api.wait(run["id"], lambda row, step=step: row["step"] > step or row["status"] in TERMINAL, WITHIN_S)
        assert found["status"] not in TERMINAL, found["reason_text"]
    api.act(run["id"], "stop")
    ended = api.finish(run["id"], WITHIN_S)
    assert ended["status"] == "stopped", ended["reason_text"]
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        assert [check for check in consistency_report(conn, run["no"]) if not check.ok] == []
        assert_accounted(conn, run["no"])
    assert "equals the stored rows exactly" in system.manage("replay", str(run["no"]))
