"""An admin drains a node under a running run: it moves to the other node, trains on, and the node is empty.

The whole system with a second node beside it: its own name, its own home, its own devices; the folder of weights is
shared, as between hosts.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.further_node import WITHIN_S, eventually, further_node, known_nodes
from tests.support.system import Api, ApiError, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.full]

SMALL = {
    "name": "moves",
    "template": "reference_game",
    "overrides": {
        "budget": {"train_steps": 5000, "target": None},
        "evaluation": {"every_steps": 1000, "tasks": 8},
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
    },
}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder: Path = tmp_path_factory.mktemp("drain")
    folder.chmod(0o711)
    with System(folder / "home", environment={"FLEXMARL_NODE": "north"}) as running:
        yield running


@pytest.fixture(scope="module")
def south(system: System) -> Iterator[None]:
    """Start a node named south beside the system's own."""
    home = system.home.parent / "south"
    home.mkdir()
    (system.home / "state").mkdir(exist_ok=True)
    (home / "state").symlink_to(system.home / "state")
    with further_node(system, home):
        yield


@pytest.fixture(scope="module")
def api(system: System, south: None) -> Api:
    return known_nodes(system.api(), "north", "south")


def rule(api: Api, kind: str, name: str, action: str, body: dict[str, Any] | None = None) -> Any:
    version = api.get(f"/{kind}s/{name}")["version"]
    return api.call("POST", f"/{kind}s/{name}/actions/{action}", body or {}, If_Match=f'W/"{version}"')


def nodes_of(api: Api, run: dict[str, Any]) -> list[str]:
    held = [d for d in api.get("/devices")["results"] if d["lease"] and d["lease"]["run_no"] == run["no"]]
    return sorted(d["node"] for d in held if d["lease"]["state"] == "held")


def versions(api: Api, run: dict[str, Any]) -> int:
    return min(row["version"] for row in api.get(f"/runs/{run['id']}/versions")["results"])


def test_a_node_is_drained_under_a_running_run(api: Api) -> None:
    rule(api, "node", "south", "cordon", {"note": "not yet"})
    run = api.create_run(**SMALL)
    api.wait(run["id"], lambda r: r["status"] == "running" and r["step"] >= 2, WITHIN_S)
    assert nodes_of(api, run) == ["north", "north"]
    rule(api, "node", "south", "enable")

    look = api.post("/nodes/north/actions/drain", {"mode": "move", "dry_run": True})
    assert [(lease["run"], lease["use"]) for lease in look["leases"]] == [
        (run["key"], "engine"),
        (run["key"], "trainer"),
    ]
    assert all(lease["moves_to"].startswith("south") for lease in look["leases"])
    with pytest.raises(ApiError) as refused:
        api.post("/nodes/north/actions/drain", {"mode": "move"})
    assert refused.value.status == 428

    asked = rule(api, "node", "north", "drain", {"mode": "move", "note": "new memory"})
    assert (asked["state"], asked["drain"]["leases_left"]) == ("draining", 2)
    north = eventually(lambda: (row := api.get("/nodes/north"))["state"] == "drained" and row)
    assert (north["drain"]["done"], north["leases"], north["note"]) == (True, 0, "new memory")
    assert nodes_of(api, run) == ["south", "south"]

    before, step = versions(api, run), api.run(run["id"])["step"]
    moved = api.wait(run["id"], lambda r: r["step"] >= step + 3 and r["status"] == "running", WITHIN_S)
    assert versions(api, run) > before, "training goes on with higher versions"
    assert moved["reason"] == ""
    # Newest first: how many steps the run has taken by now depends on the machine.
    said = [note["text"] for note in api.get(f"/runs/{run['id']}/notes?limit=500")["results"]]
    assert sum("moved from north" in text for text in said) == 2

    assert rule(api, "node", "north", "enable")["state"] == "ready"
    api.act(run["id"], "stop")
    assert api.finish(run["id"], WITHIN_S)["status"] == "stopped"
    report = api.consistency(run["id"])
    assert report["ok"], [check for check in report["checks"] if not check["ok"]]
    log = api.get("/changes?kind=node&name=north&ordering=at")["results"]
    assert [(entry["action"], entry["after"]["state"]) for entry in log] == [
        ("node.drain", "draining"),
        ("node.enable", "ready"),
    ]


def test_priorities_and_a_quota_order_the_queue(api: Api) -> None:
    rule(api, "node", "south", "cordon")
    free = [d["id"] for d in eventually(lambda: _free(api, "north"))]
    for device in free[2:]:
        rule(api, "device", device, "cordon")
    first = api.create_run(**{**SMALL, "name": "holds"})
    api.wait(first["id"], lambda r: r["status"] == "running", WITHIN_S)
    young, old = (api.create_run(**{**SMALL, "name": name}) for name in ("waits", "waits more"))
    queued = eventually(lambda: len(rows := api.get("/queue")["results"]) == 2 and rows)
    assert [row["run"]["id"] for row in queued] == [young["id"], old["id"]]
    api.post(f"/runs/{old['id']}/actions/set-priority", {"priority": 90})
    rows = api.get("/queue")["results"]
    assert [row["run"]["id"] for row in rows] == [old["id"], young["id"]]
    assert rows[1]["text"] == f"Behind {rows[0]['run']['key']}, which has a higher priority for default"

    api.call("PUT", "/pools/default/quotas/default", {"devices": 1}, If_Match='W/"0"')
    rows = api.get("/queue")["results"]
    assert {row["code"] for row in rows} == {"quota_too_small"}
    assert rows[0]["text"] == "Needs 2 devices in default, the quota of project default is 1"
    api.act(first["id"], "kill")
    eventually(lambda: len(_free(api, "north")) == 2)
    time.sleep(2.0)
    assert {api.run(run["id"])["status"] for run in (young, old)} == {"queued"}, "a quota holds whatever is free"
    api.call("DELETE", "/pools/default/quotas/default", If_Match='W/"1"')
    api.wait(old["id"], lambda r: r["status"] in {"starting", "running"}, WITHIN_S)
    assert api.run(young["id"])["status"] == "queued"
    for run in (young, old):
        api.act(run["id"], "kill")


def _free(api: Api, node: str) -> list[dict[str, Any]]:
    return [d for d in api.get("/devices")["results"] if d["node"] == node and d["free"]]


def test_a_node_that_vanishes_is_left_in_the_middle_of_a_step(api: Api) -> None:
    """Its engine moves by itself, its trainer when somebody drains the node. Ends what the other tests run on."""
    rule(api, "node", "north", "cordon")
    rule(api, "node", "south", "enable")
    run = api.create_run(**{**SMALL, "name": "is left"})
    api.wait(run["id"], lambda r: r["status"] == "running" and r["step"] >= 2, WITHIN_S)
    assert nodes_of(api, run) == ["south", "south"]
    rule(api, "node", "north", "enable")
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.environ().get("FLEXMARL_NODE") == "south":
                process.kill()

    eventually(lambda: nodes_of(api, run) == ["north", "south"])
    waiting = api.run(run["id"])
    assert waiting["reason"] == "recovering_trainer", waiting["reason_text"]
    rule(api, "node", "south", "drain", {"mode": "move", "note": "gone"})
    eventually(lambda: nodes_of(api, run) == ["north", "north"])
    went_on = api.wait(run["id"], lambda r: r["step"] >= waiting["step"] + 3, WITHIN_S)
    assert (went_on["status"], went_on["reason"]) == ("running", "")
    said = [note["text"] for note in api.get(f"/runs/{run['id']}/notes?limit=500")["results"]]
    assert sum("is gone, north" in text for text in said) == 2
    assert any("node south has sent no heartbeat for more than 90 s" in text for text in said)
    api.act(run["id"], "stop")
    assert api.finish(run["id"], WITHIN_S)["status"] == "stopped"
    report = api.consistency(run["id"])
    assert report["ok"], [check for check in report["checks"] if not check["ok"]]
    assert {device["lease"]["state"] for device in api.get("/devices")["results"] if device["lease"]} == {"releasing"}
