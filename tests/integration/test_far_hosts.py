"""Hosts in networks of their own: nothing of the installation but an address and a token, and a long way to it.

Each reaches one address, where TLS stands before the web service, for the first one behind 50 ms there and back and one
lost packet in a hundred; the installation's folder is empty for them. Runs there are what runs here are, whether one
host plays and trains, two share a run, or three share two runs; whatever is killed and whenever the way is cut.
"""

import random
from collections.abc import Iterator

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.bits import Bits, bits_of
from tests.support.counting import assert_accounted
from tests.support.door_node import COMMANDS
from tests.support.far_hosts import WITHIN_S, FarHost, allowed_hosts, far_hosts, resources
from tests.support.far_link import can_be_apart
from tests.support.system import TERMINAL, System

pytestmark = [
    pytest.mark.full,
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not can_be_apart(), reason="networks of their own need root and iproute2"),
]

HOSTS = range(1, 4)
PLACES = {"one": [(0, 0)], "two": [(0, 1)], "three": [(0, 1), (2, 1)]}
"""Hosts at work -> runs at once: the host that plays, the host that trains."""
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


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    hosts = {"FLEXMARL_ALLOWED_HOSTS": allowed_hosts(HOSTS)}
    with System(tmp_path_factory.mktemp("here") / "home", environment=hosts) as system:
        yield system


@pytest.fixture(scope="module")
def here(system: System) -> Bits:
    """What the ordered run comes to beside the control plane."""
    run = system.api().create_run(name="here", template="hot_cold", overrides=ORDERED)
    return ordered(system, run)


@pytest.fixture(scope="module")
def hosts(system: System, here: Bits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[FarHost]]:
    with far_hosts(system, tmp_path_factory.mktemp("apart"), HOSTS) as hosts:
        yield hosts


def ordered(system: System, run: dict[str, object]) -> Bits:
    ended = system.api().finish(str(run["id"]), WITHIN_S)
    assert (ended["status"], ended["step"]) == ("completed", 6), ended["reason_text"]
    return bits_of(system.database_url, ended["no"])


@pytest.mark.parametrize("count", PLACES)
def test_an_ordered_run_there_ends_in_the_bits_that_it_has_here(
    system: System, here: Bits, hosts: list[FarHost], count: str
) -> None:
    before = [host.link.passed for host in hosts]
    runs = [
        system.api().create_run(
            name=f"ordered on {count}",
            template="hot_cold",
            overrides={**ORDERED, "resources": resources(hosts[rollout], hosts[training])},
        )
        for rollout, training in PLACES[count]
    ]
    for run in runs:
        assert ordered(system, run) == here
    assert len(here.samples) > 100
    for used in {place for places in PLACES[count] for place in places}:
        assert hosts[used].link.passed - before[used] > 300_000, "it went over the way of each host"


@pytest.mark.parametrize("count", PLACES)
def test_nothing_is_lost_or_doubled_through_kills_and_partitions(
    system: System, hosts: list[FarHost], count: str
) -> None:
    rng, api = random.Random(0), system.api()
    used = sorted({place for places in PLACES[count] for place in places})
    runs = [
        api.create_run(
            name=f"struck on {count}",
            template="reference_game",
            overrides={**ENDLESS, "resources": resources(hosts[rollout], hosts[training])},
        )["id"]
        for rollout, training in PLACES[count]
    ]
    for run in runs:
        api.wait(run, lambda row: row["step"] >= 2, WITHIN_S)
    for _ in range(STRIKES):
        steps = {run: api.run(run)["step"] for run in runs}
        host = hosts[rng.choice(used)]
        if rng.random() < 0.5:
            host.link.cut(rng.uniform(5.0, 60.0))
        else:
            host.node.kill(rng.choice(list(COMMANDS)))
        for run, step in steps.items():
            found = api.wait(run, lambda row, step=step: row["step"] > step or row["status"] in TERMINAL, WITHIN_S)
            assert found["status"] not in TERMINAL, found["reason_text"]
    for run in runs:
        api.act(run, "stop")
        ended = api.finish(run, WITHIN_S)
        assert ended["status"] == "stopped", ended["reason_text"]
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            assert [check for check in consistency_report(conn, ended["no"]) if not check.ok] == []
            assert_accounted(conn, ended["no"])
        assert "equals the stored rows exactly" in system.manage("replay", str(ended["no"]))
