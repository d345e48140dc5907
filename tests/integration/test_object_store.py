"""A host that has lost its whole state folder goes on with what the object store keeps."""

from collections.abc import Callable

import psycopg
import pytest

from flexmarl.store.data import references
from tests.support.machine import wait_for
from tests.support.system import MANY_DEVICES, System
from workers.transfer.objects import ObjectStore

pytestmark = [pytest.mark.services, pytest.mark.slow]

WITHIN_S = 240.0
SMALL = {
    "budget": {"train_steps": 400, "target": None},
    "environment": {"latency": {"scale_s": 0.5, "sigma": 0.0}},  # it goes on for as long as others copy
    "evaluation": {"every_steps": 1000, "tasks": 8},
    "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
}


def test_a_run_goes_on_after_its_host_lost_every_content(installations: Callable[[int], System]) -> None:
    system = installations(MANY_DEVICES)
    url = system.environment["FLEXMARL_OBJECT_STORE"]
    api = system.api()
    run = api.create_run(name="lost", template="reference_game", overrides=SMALL)
    api.wait(run["id"], lambda row: row["step"] >= 4, WITHIN_S)
    api.act(run["id"], "kill")
    killed = api.wait(run["id"], lambda row: row["status"] == "killed", WITHIN_S)
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        wait_for(lambda: references.contents(conn) <= ObjectStore(url).whole(), WITHIN_S)
        [(newest,)] = conn.execute(
            "SELECT max(version) FROM store.policy_version WHERE run_id = %s", [run["no"]]
        ).fetchall()
        unfinished = "SELECT FROM store.lease WHERE run_id = %s AND state <> 'ended'"
        wait_for(lambda: conn.execute(unfinished, [run["no"]]).fetchone() is None, WITHIN_S)
    # All of it at one stroke: the node sweeps the folder meanwhile, and makes it anew when it is gone.
    (system.home / "state").rename(system.home.parent / "gone")
    (system.home / "state").mkdir(mode=0o700, exist_ok=True)
    api.act(run["id"], "retry")
    gone_on = api.wait(run["id"], lambda row: row["step"] >= killed["step"] + 3, WITHIN_S)
    assert gone_on["status"] == "running"
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        versions = conn.execute(
            "SELECT version FROM store.policy_version WHERE run_id = %s AND policy = 'speaker' ORDER BY version",
            [run["no"]],
        ).fetchall()
    assert [version for (version,) in versions] == list(range(len(versions))), "no number was made twice or left out"
    assert len(versions) > newest + 1
    api.act(run["id"], "kill")
