"""Mechanisms that real runs meet together only in presets, with real engines, trainers and services, all runs at once.

- a quarter more groups with more members each, whose tasks wait for a long round (`rollpacker`)
- credit in groups, four steps' of them, four updates a step, surplus that plays on (`areal`)
- trainers that share devices beside one with a device of its own, and a policy on both shared ones (`rlinf_hybrid`)

The rows are asked afterwards, and the log of the last one is replayed.
"""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.promised import broken, read
from tests.support.system import MANY_DEVICES, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 3
MIXED: dict[str, Any] = {
    "policies": {"guesser": {"devices": 2}},
    "resources": {"rollout_devices": 2, "training_devices": 3},
    "mechanisms": {"allocation": {"homes": {"guesser": [0, 1], "hinter": [2]}}},
}
RUNS: dict[str, dict[str, Any]] = {"rollpacker": {}, "areal": {}, "rlinf_hybrid": MIXED}
DEVICES = {name: 3 if own else 2 for name, own in RUNS.items()}
TRAINED = """
SELECT l.beside IS NOT NULL OR EXISTS (SELECT 1 FROM store.lease o WHERE o.device_id = l.device_id
  AND o.run_id = l.run_id AND o.use = 'engine'), i.policy, i.t0, i.t1 FROM store.interval i
JOIN store.lease l ON l.id = i.lease_id
WHERE i.run_id = %s AND i.phase IN ('train', 'step') AND l.use = 'trainer'
"""
PLAYED = "SELECT extract(epoch FROM started_at), extract(epoch FROM finished_at) FROM store.episode WHERE run_id = %s"
GANGS = "SELECT count(*) FROM store.command WHERE run_id = %s AND kind = 'join_gang' AND status = 'done'"


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(MANY_DEVICES)


def spec(own: dict[str, Any]) -> dict[str, Any]:
    return own | {
        "environment": {"latency": {"scale_s": 0.02, "sigma": 1.2, "cap_s": 0.5}},
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 2},
        "checkpoints": {"every_steps": 100},
    }


def trained_while_played(conn: psycopg.Connection, run_no: int) -> tuple[set[str], set[tuple[str, bool]]]:
    """Return who was trained while an episode played, and on which kind of device each was trained."""
    work = conn.execute(TRAINED, [run_no]).fetchall()
    played = [(float(a), float(b)) for a, b in conn.execute(PLAYED, [run_no]).fetchall()]
    beside = {name for _, name, t0, t1 in work if any(min(t1, b) - max(t0, a) > 0.002 for a, b in played)}
    return beside, {(name, shared) for shared, name, _, _ in work}


def test_what_presets_combine_keeps_every_promise(system: System) -> None:
    api = system.api()
    runs = {
        name: api.create_run(name=name, template="hot_cold", preset=name, spec=spec(own)) for name, own in RUNS.items()
    }
    ended = {name: api.finish(run["id"], 400) for name, run in runs.items()}
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        kept = {name: read(conn, run["no"]) for name, run in ended.items()}
        assert {name: broken(ended[name], own) for name, own in kept.items()} == {name: [] for name in RUNS}
        no = ended["rlinf_hybrid"]["no"]
        beside, places = trained_while_played(conn, no)
        gangs = conn.execute(GANGS, [no]).fetchone()
    assert {name: run["devices"] for name, run in ended.items()} == DEVICES
    assert kept["rollpacker"].surplus["groups/deferred"] > 0
    assert ended["rollpacker"]["progress"]["episodes_cancelled"] > 0
    assert max(kept["areal"].lags.values()) > 0
    assert kept["areal"].surplus["groups/handed_on"] > 0
    assert places == {("guesser", True), ("hinter", False)}
    assert beside == {"hinter"}, "a device of its own trains while episodes play, a shared one never"
    assert kept["rlinf_hybrid"].turns >= 2 * STEPS
    assert gangs is not None
    assert gangs[0] >= STEPS, "both ranks were there in every step"
    assert "equals the stored rows exactly" in system.manage("replay", str(no))
