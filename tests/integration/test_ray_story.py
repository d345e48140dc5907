"""Hosts of a real Ray cluster: each is placed once and leaves nothing; a pool grows for a run, a raylet is killed in
mid-step, and the run ends in the bits that it has on the installation's own node. Hosts share a folder with the
installation, or have a node token and nothing of it."""

import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.support import ray_cluster
from tests.support.bits import bits_of
from tests.support.further_node import WITHIN_S, eventually
from tests.support.promised import kept_its_promises
from tests.support.ray_cluster import RayCluster, processes_of
from tests.support.system import ROOT, Api, System

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.skipif(bool(ray_cluster.MISSING), reason=ray_cluster.MISSING),
]

BRIDGE = ROOT / "platform/flexmarl/controlplane/inventory/providers/ray_bridge.py"
PROVIDER = {"type": "ray", "devices": 2, "cpus": 2, "max_nodes": 2, "idle_s": 10, "rollout_workers": 1}
POOLS = {"batch": "shared_folder", "apart": "node_token"}
SECRETS = ("DATABASE_URL", "REDIS_URL", "FLEXMARL_CLUSTER_KEY")
RESOURCES = {"rollout_devices": 1, "training_devices": 2}
"""An engine and a trainer for each of two policies: more than one host has."""
STEPS, STRUCK_IN, MICRO_BATCHES = 5, 3, 4
ORDERED = {
    "seed": 7,
    "budget": {"train_steps": STEPS, "target": None},
    "evaluation": {"every_steps": 100, "tasks": 8},
    "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
    "mechanisms": {"ordered": True},
}
DONE = """
SELECT count(*) FILTER (WHERE kind = 'step_committed'), count(*) FILTER (WHERE kind = 'micro_batch_accumulated')
FROM store.event WHERE run_id = %s
"""
TRAINERS = """
SELECT DISTINCT d.node FROM store.lease l JOIN store.device d ON d.id = l.device_id
WHERE l.run_id = %s AND l.state = 'held' AND l.use = 'trainer' ORDER BY d.node
"""
KILLS = """
import __main__, os, signal, sys
path, address, mark = sys.argv[1:]
source = open(path).read().partition('if __name__ == "__main__":')[0]
exec(compile(source, path, "exec"), __main__.__dict__)
submit = Hosts.submit
def killing(self, *given, **more):
    native = submit(self, *given, **more)
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getppid(), signal.SIGKILL)
    return native
Hosts.submit = killing
sys.argv = [path, address]
main()
"""
"""Stands for the bridge, and kills who asks it after the first host is submitted, before its answer."""

OTHER = """
import runpy, sys, ray
ray.__version__ = "0.1"
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster.ray_cluster((2, 2, 2)) as running:
        yield running


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, cluster: RayCluster) -> Iterator[System]:
    folder: Path = tmp_path_factory.mktemp("provided")
    folder.chmod(0o711)
    (folder / "kills.py").write_text(KILLS)
    wrapper = folder / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {ray_cluster.RAY_PYTHON} -I {folder}/kills.py "$2" "$3" {folder}/killed\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    environment = {"FLEXMARL_NODE": "front", "FLEXMARL_CPU_SHARES": "3", "FLEXMARL_RAY_PYTHON": str(wrapper)}
    with System(folder / "home", environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def api(system: System, cluster: RayCluster) -> Api:
    api = system.api()
    for pool, access in POOLS.items():
        provider = {**PROVIDER, "address": cluster.address, "access": access}
        api.post("/pools", {"name": pool, "provider": provider, "device_hour_price": 2})
    return api


def jobs(api: Api, pool: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = api.get(f"/pools/{pool}/jobs")["results"]
    return rows


class Asked:
    """A bridge to the cluster at an address, asked line by line."""

    def __init__(self, address: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._bridge = subprocess.Popen([ray_cluster.RAY_PYTHON, "-I", str(BRIDGE), address], text=True, **pipes)
        assert "ready" in self._answer()

    def __call__(self, call: str, **given: Any) -> Any:
        assert self._bridge.stdin is not None
        self._bridge.stdin.write(json.dumps({"id": 1, "call": call, "given": given}) + "\n")
        self._bridge.stdin.flush()
        return self._answer()["result"]

    def _answer(self) -> dict[str, Any]:
        assert self._bridge.stdout is not None
        answer: dict[str, Any] = json.loads(self._bridge.stdout.readline())
        return answer

    def die(self) -> None:
        self._bridge.kill()
        self._bridge.communicate()


def test_a_host_is_placed_once_whoever_asks_for_it_dies_and_leaves_nothing(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    command = ["sh", "-c", f'echo > {marks}/"$0"-$$; exec sleep 600', "PLACEMENT_GROUP_ID"]
    host = {"command": command, "folder": "/", "python_path": "", "environment": {}, "log": str(tmp_path / "log")}
    job = {"name": "host-1", "native": "", "at_work": False, "unwanted": False}
    with ray_cluster.ray_cluster((), head_cpus=1) as running:
        ask = Asked(running.address)
        native = ask("submit", name="host-1", bundle={"CPU": 1.0}, asked=host)
        ask.die()  # before anybody noted what it had submitted
        ask = Asked(running.address)
        assert ask("submit", name="host-1", bundle={"CPU": 1.0}, asked=host) == native
        seen = eventually(lambda: (found := ask("look", jobs=[job])["host-1"][0])["state"] == "running" and found)
        assert seen["native"] == native
        [mark] = eventually(lambda: list(marks.iterdir()))
        process = int(mark.name.removeprefix(f"{native}-"))
        assert Path(f"/proc/{process}").exists()
        ask("cancel", native=native)
        eventually(lambda: ask("look", jobs=[{**job, "native": native}])["host-1"][0]["state"] == "ended")
        eventually(lambda: not Path(f"/proc/{process}").exists())
        assert (running.living(), running.ask()["actors"]) == ([], [])
        ask.die()


def ordered(api: Api, pool: str, template: str = "hot_cold", seed: int = 7, **resources: int) -> dict[str, Any]:
    """Submit an ordered run to a pool: that of two policies, or of a template that one host can hold."""
    wanted = {**(resources or RESOURCES), "rollout_pool": pool, "training_pool": pool}
    made: dict[str, Any] = api.create_run(
        name=f"{template} on {pool}", template=template, overrides={**ORDERED, "seed": seed, "resources": wanted}
    )
    return made


def homes_without_secrets(system: System, job: dict[str, Any]) -> set[Path]:
    """Return the homes of a host's processes, none of which has a secret or a folder of the installation."""
    found = [environ(int(one.split()[0])) for one in processes_of(system.home, job["id"])]
    assert not [name for one in found for name in SECRETS if name in one]
    assert any(one.get("FLEXMARL_NODE_TOKEN", "").startswith("fmn_") for one in found)
    homes = {Path(one["FLEXMARL_HOME"]) for one in found}
    assert not [home for home in homes if home.is_relative_to(system.home)]
    return homes


def environ(process: int) -> dict[str, str]:
    """Return the environment of a process."""
    told = Path(f"/proc/{process}/environ").read_text().split("\0")
    return {name: value for name, _, value in (one.partition("=") for one in told)}


@pytest.mark.full
def test_a_host_with_a_token_trains_without_secrets_and_leaves_nothing(
    api: Api, system: System, cluster: RayCluster
) -> None:
    one = {"rollout_devices": 1, "training_devices": 1}
    run = ordered(api, "apart", "reference_game", **one)
    job = eventually(lambda: next((job for job in jobs(api, "apart") if job["leases"]), None))
    [home] = homes_without_secrets(system, job)
    assert home.is_relative_to(tempfile.gettempdir())
    assert (home / "logs").is_dir()
    there = bits_of(system.database_url, completed(api, run)["no"])
    assert there == bits_of(system.database_url, completed(api, ordered(api, "default", "reference_game", **one))["no"])
    eventually(lambda: all(job["ended_at"] for job in jobs(api, "apart")), 120)
    assert {job["state"] for job in jobs(api, "apart")} == {"ended"}
    tokens = api.get("/node-tokens?pool=apart")["results"]
    eventually(lambda: all(one["state"] == "revoked" for one in api.get("/node-tokens?pool=apart")["results"]))
    assert [one["job"] for one in tokens] == [job["id"] for job in jobs(api, "apart")]
    assert not home.exists()
    assert processes_of(system.home, job["id"]) == []
    assert not {name for name, *_ in cluster.living()} & {job["name"] for job in jobs(api, "apart")}


def completed(api: Api, run: dict[str, Any]) -> dict[str, Any]:
    """Return a run that has ended, with all its steps."""
    ended = api.finish(run["id"], 2 * WITHIN_S)
    assert (ended["status"], ended["step"]) == ("completed", STEPS), ended["reason_text"]
    return ended


def done(system: System, run_no: int) -> tuple[int, int]:
    """Return how many steps of policies a run has committed, and how many micro-batches it has accumulated."""
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        steps, micro_batches = conn.execute(DONE, [run_no]).fetchone() or (0, 0)
    return steps, micro_batches


def struck_in_mid_step(system: System, run_no: int, raylet: int) -> None:
    """Kill a raylet once both policies have ended the step before and one has begun to train the next."""
    steps, deadline = 2 * (STRUCK_IN - 1), time.monotonic() + WITHIN_S
    while (now := done(system, run_no))[0] < steps or now[1] <= steps * MICRO_BATCHES:
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)
    os.kill(raylet, signal.SIGKILL)
    assert done(system, run_no)[0] < steps + 2, "the step was under way"


def nodes_that_train(system: System, run_no: int) -> list[str]:
    """List the nodes that hold trainers of a run."""
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        return [node for (node,) in conn.execute(TRAINERS, [run_no]).fetchall()]


def raylet_of(system: System, job: dict[str, Any]) -> int:
    """Return the process id of the raylet below which the processes of a job run."""
    process = psutil.Process(int(processes_of(system.home, job["id"])[0].split()[0]))
    return next(one.pid for one in process.parents() if "raylet/raylet" in one.cmdline()[0])


@pytest.mark.full
@pytest.mark.parametrize("pool", POOLS)
def test_a_raylet_is_killed_in_mid_step_and_a_run_over_two_ends_in_the_bits_that_it_has_here(
    api: Api, system: System, cluster: RayCluster, pool: str
) -> None:
    former = {job["id"] for job in jobs(api, pool)}
    cluster.add({f"{pool}-spare": 2})  # each of these tests takes one away
    seed = list(POOLS).index(pool)
    run = ordered(api, pool, seed=seed)
    trainers = eventually(lambda: nodes_that_train(system, run["no"]))
    hosts = [job for job in jobs(api, pool) if not job["ended_at"]]
    if POOLS[pool] == "node_token":
        homes = {job["id"]: homes_without_secrets(system, job) for job in hosts}
        assert {len(one) for one in homes.values()} == {1}
        assert len(set.union(*homes.values())) == len(hosts)
    raylets = {job["node"]: raylet_of(system, job) for job in hosts}
    assert len(set(raylets.values())) == 2, "on two raylets"
    assert (system.home.parent / "killed").exists(), "the first submission was not noted"
    lost = next(job for job in hosts if job["node"] == trainers[0])
    struck_in_mid_step(system, run["no"], raylets[lost["node"]])
    eventually(lambda: next(job for job in jobs(api, pool) if job["id"] == lost["id"])["state"] == "failed")
    assert "its node has died" in next(job for job in jobs(api, pool) if job["id"] == lost["id"])["reason"]
    assert processes_of(system.home, lost["id"]) == [], "none outlived its raylet"
    there = bits_of(system.database_url, completed(api, run)["no"])
    # Last, since equal contents have equal names: nothing of it may lie here before the host is lost.
    assert there == bits_of(system.database_url, completed(api, ordered(api, "default", seed=seed))["no"])
    assert len(there.samples) > 100
    kept_its_promises(system, run["no"])
    eventually(lambda: all(job["ended_at"] for job in jobs(api, pool)), 120)
    asked, left = {job["name"]: job for job in jobs(api, pool) if job["id"] not in former}, cluster.ask()
    groups = [(name, state) for name, state, _ in left["groups"] if name in asked]
    assert ({state for _, state in groups}, left["actors"]) == ({"REMOVED"}, [])
    assert sorted(name for name, _ in groups) == sorted(asked), "each once"
    assert len(groups) == 3, "another host came for the one that was lost"
    assert not [one for job in asked.values() for one in processes_of(system.home, job["id"])]
    if POOLS[pool] == "node_token":
        [left_by_the_kill] = homes[lost["id"]]
        shutil.rmtree(left_by_the_kill)
        assert not [home for found in homes.values() for home in found if home.exists()]


@pytest.mark.full
def test_a_gang_gets_no_device_before_all_its_hosts_are_there(api: Api, cluster: RayCluster) -> None:
    provider = {**PROVIDER, "address": cluster.address, "resources": {"late": 1}}
    api.post("/pools", {"name": "gang", "provider": provider})
    cluster.add({"r4": 2}, also="late")
    run = ordered(api, "gang")
    eventually(lambda: [job["registered"] for job in jobs(api, "gang")].count(True) == 1)
    eventually(lambda: any(job["reason"].startswith("PENDING (") for job in jobs(api, "gang")))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        assert [job["leases"] for job in jobs(api, "gang")] == [0, 0]
        time.sleep(0.5)
    assert api.run(run["id"])["step"] == 0
    cluster.add({"r5": 2}, also="late")
    api.wait(run["id"], lambda r: r["status"] == "running" and r["step"] >= 1, WITHIN_S)
    completed(api, run)
    eventually(lambda: all(job["ended_at"] for job in jobs(api, "gang")), 120)
    assert cluster.living() == []
    assert api.consistency(run["id"])["ok"]


@pytest.mark.full
def test_another_version_than_the_clusters_is_named(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(OTHER)
    command = [ray_cluster.RAY_PYTHON, "-I", str(tmp_path / "other.py"), str(BRIDGE), cluster.address]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bridge:
        assert bridge.stdout is not None
        answer = json.loads(bridge.stdout.readline())
    assert answer["failed"] == "versions"
    assert "The cluster was started with: Ray: 2." in answer["words"]
    assert "was started with: Ray: 0.1" in answer["words"]
