"""Replay through the real services: rows of earlier steps are trained again, and nothing is lost, doubled or different.

Ordered runs are compared bit by bit: one without a share is a plain one, and one whose driver and trainer are killed
ends in the weights of an undisturbed one. The rows are asked afterwards, and each log is replayed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.bits import bits_of
from tests.support.chaos import patient
from tests.support.packing import packed
from tests.support.promised import kept_its_promises
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 6
ORDERED_STEPS = 4
"""In the last of them, rows of the first are too old, and as many steps follow what is killed."""
ARCHIVE = {"type": "archive", "share": 0.5, "max_age": 2}
EMPTY = ARCHIVE | {"share": 0.0}
REPLAYED = """
SELECT count(*) FILTER (WHERE m.replayed), sum(jsonb_array_length(m.keys)) FILTER (WHERE m.replayed)
FROM store.micro_batch m WHERE m.run_id = %s AND m.status = 'applied'
"""


LIMITED = """
SELECT l.turns, e.turns, e.status, e.solved, e.team_score, e.facts ->> 'truncated' = '1.0'
FROM store.episode e JOIN (
  SELECT DISTINCT (g ->> 'draw')::int AS draw, (g ->> 'turns')::int AS turns
  FROM store.command c, jsonb_array_elements(c.body -> 'groups') AS g
  WHERE c.run_id = %s AND g ? 'turns') l USING (draw)
WHERE e.run_id = %s
"""


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def spec(replay: object, steps: int = STEPS, **mechanisms: Any) -> dict[str, Any]:
    return {
        "seed": 7,
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
        "algorithm": {"loss": {"type": "ppo_clip"}},
        "sampling": {"replay": replay},
        "mechanisms": mechanisms,
        "budget": {"train_steps": steps, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 2},
        "checkpoints": {"every_steps": 100},
    }


def replayed(system: System, run_no: int) -> tuple[int, int]:
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        row = conn.execute(REPLAYED, [run_no]).fetchone()
    assert row is not None
    return int(row[0]), int(row[1] or 0)


def has_replayed(run: dict[str, Any]) -> bool:
    return bool(run["step"] >= 2)


def has_stepped(run: dict[str, Any]) -> bool:
    return bool(run["step"] >= 1)


def test_ordered_runs_replay_the_same_rows_whoever_is_killed(system: System) -> None:
    api, bits, counts = system.api(), {}, {}
    for name, replay in {"plain": "none", "empty": EMPTY, "quiet": ARCHIVE, "struck": ARCHIVE}.items():
        run_id = api.create_run(name=name, template="hot_cold", spec=spec(replay, ORDERED_STEPS, ordered=True))["id"]
        if name == "struck":
            patient(lambda run_id=run_id: api.wait(run_id, has_replayed, 300))
            system.kill("driver")
            system.kill("device-worker")
        run = patient(lambda run_id=run_id: api.finish(run_id, 400))
        assert (run["status"], run["step"]) == ("completed", ORDERED_STEPS), run["reason_text"]
        kept_its_promises(system, run["no"])
        counts[name] = replayed(system, run["no"])
        assert run["progress"]["rows_replayed"] == counts[name][1]
        assert bool(run["progress"]["archive"]) is (name != "plain")
        found = bits_of(system.database_url, run["no"])
        bits[name] = (found.samples, found.sums, found.weights, found.states)
    assert bits["plain"] == bits["empty"]
    assert counts["plain"] == counts["empty"] == (0, 0)
    assert bits["quiet"] == bits["struck"]
    assert counts["quiet"] == counts["struck"]
    assert counts["quiet"][1] > 0
    assert bits["quiet"] != bits["plain"], "replayed rows are trained"


def test_a_success_of_an_earlier_step_stands_in_groups_that_failed(system: System) -> None:
    """The hinter and the guesser begin untrained, so groups of two often fail; turns are limited by what succeeded."""
    api = system.api()
    changes = spec({"type": "rescue", "max_age": 6, "max_uses": 4})
    changes["batch"] |= {"episodes_per_task": 2}
    changes["sampling"]["task_sampler"] = {"type": "greso", "tasks": 8, "least_easy": 1.0, "least_hard": 1.0}
    changes["sampling"]["turn_limit"] = {"type": "past_successes", "least": 1}
    run = api.finish(api.create_run(name="rescue", template="hot_cold", spec=changes)["id"], 400)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    kept_its_promises(system, run["no"], complete=False)
    assert replayed(system, run["no"])[1] == run["progress"]["rows_replayed"] > 0
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        found = conn.execute(
            "SELECT target, reason FROM store.ruling WHERE run_id = %s AND kind = 'group_rescued'", [run["no"]]
        ).fetchall()
    assert found
    draw = int(found[0][0].partition(":")[2])
    group = api.get(f"/runs/{run['id']}/groups/{draw}")
    rulings = [(one["kind"], one["reason"]) for one in group["rulings"]]
    beside = ("rows_dropped", "group_limited")
    assert [one for one in rulings if one[0] not in beside] == [("group_rescued", found[0][1])]
    assert len(rulings) > 1, "the rows of the member that made room"
    assert group["statistics"]["solved"] == 0
    others = {member["member"]: member["advantages"] for member in group["members"]}
    assert others[0] == {}, "it made room"
    assert any(value < 0 for value in others[1].values())
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        limited = conn.execute(LIMITED, [run["no"], run["no"]]).fetchall()
    assert limited
    assert all(turns <= limit for limit, turns, *_ in limited)
    cut_off = [(status, solved, score) for *_, status, solved, score, cut in limited if cut]
    assert set(cut_off) == {("finished", False, 0.0)}
    assert api.series(run["id"], "fact/truncated")


@pytest.mark.full
def test_a_run_with_lag_replays_what_is_young_enough(system: System, tmp_path: Path) -> None:
    api = system.api()
    rule = ARCHIVE | {"max_age": 4, "max_uses": 2, "order": "newest"}
    made = api.create_run(name="lag", template="hot_cold", spec=spec(rule, lag_policy={"bound": 2}))
    run = api.finish(made["id"], 400)
    assert run["status"] == "completed", run["reason_text"]
    kept_its_promises(system, run["no"])
    assert replayed(system, run["no"])[1] == run["progress"]["rows_replayed"] > 0
    found = api.series(run["id"], "replay/age", "replay/share")
    assert max(value for (name, _, stat), (_, values) in found.items() if stat == "max" for value in values) <= 4
    shares = [value for (name, _, _), (_, values) in found.items() if name == "replay/share" for value in values]
    assert 0 < max(shares) <= 0.75, "of rows: groups may have more of them"
    said = system.manage("export_rows", run["key"], str(tmp_path / "rows"))
    described = json.loads((tmp_path / "rows/export.json").read_text())
    assert described["rows"] == run["progress"]["samples_trained"], said
    assert set(described["tokenizers"]) == {"guesser", "hinter"}
    _what_it_did_warms_up_another(system, tmp_path / "rows", described)
    _what_it_did_begins_the_archives_of_others(system)


def _what_it_did_warms_up_another(system: System, folder: Path, described: dict[str, Any]) -> None:
    """The export is imported; a run of the same game learns its rows."""
    api = system.api()
    found = api.call("POST", "/row-sets?name=lag_run", packed(folder))
    assert (found["rows"], found["source"], found["game"]) == (described["rows"], described["run"], "hot_cold")
    assert sum(role["rows"] for role in found["roles"].values()) == found["rows"]
    solved = {role: rows["solved"] for role, rows in found["roles"].items()}
    warmup = {"steps": 6, "learning_rate": 0.003, "rows": {"name": "lag_run"}}
    changes = spec("none", 1) | {
        "policies": {role: {"warmup": {"batch_size": rows, **warmup}} for role, rows in solved.items()}
    }
    run = api.finish(api.create_run(name="warm", template="hot_cold", spec=changes)["id"], 400)
    assert (run["status"], run["step"]) == ("completed", 1), run["reason_text"]
    told = api.series(run["id"], "fact/warmup_rows", "fact/warmup_loss_first", "fact/warmup_loss_last")
    facts = {key[:2]: values for key, (_, values) in told.items()}
    for role, rows in solved.items():
        assert facts["fact/warmup_rows", role][0] == rows > 0
        assert facts["fact/warmup_loss_last", role][0] < facts["fact/warmup_loss_first", role][0]


def _what_it_did_begins_the_archives_of_others(system: System) -> None:
    """Two ordered runs begin with its rows; one is struck, and both end in the same bits."""
    api, bits = system.api(), {}
    rule = ARCHIVE | {"begins_with": "lag_run"}
    for name in ("quiet", "struck"):
        run_id = api.create_run(name=name, template="hot_cold", spec=spec(rule, ORDERED_STEPS, ordered=True))["id"]
        if name == "struck":
            patient(lambda run_id=run_id: api.wait(run_id, has_stepped, 300))
            system.kill("driver")
            system.kill("device-worker")
        run = patient(lambda run_id=run_id: api.finish(run_id, 400))
        assert (run["status"], run["step"]) == ("completed", ORDERED_STEPS), run["reason_text"]
        kept_its_promises(system, run["no"])
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            found = conn.execute(
                "SELECT m.cohort, count(*) FILTER (WHERE (k.key ->> 0)::int < 0), count(*) FROM store.micro_batch m,"
                " jsonb_array_elements(m.keys) AS k(key) WHERE m.run_id = %s AND m.replayed GROUP BY 1 ORDER BY 1",
                [run["no"]],
            ).fetchall()
        assert [cohort for cohort, imported, _ in found if imported] == [0, 1, 2], "max_age 2: versions 0 to 2"
        assert sum(count for _, _, count in found) == run["progress"]["rows_replayed"]
        cohorts = api.get(f"/runs/{run['id']}/cohorts")["results"]
        told = {one["cohort"]: sum(policy["imported"] for policy in one["policies"]) for one in cohorts}
        assert told == {cohort: imported for cohort, imported, _ in found}
        own = bits_of(system.database_url, run["no"])
        bits[name] = (own.samples, own.sums, own.weights, own.states)
    assert bits["quiet"] == bits["struck"]
