"""Models play a suite through every real process: killed workers lose and double nothing, greedy play repeats."""

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.system import Api, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]

TASKS, ATTEMPTS = 24, 2
SMALL, OTHER = {"model": {"type": "factory"}}, {"name": "larger", "model": {"type": "factory", "size": "M"}}


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def evaluate(
    api: Api, name: str, entries: list[dict[str, Any]], slow: float = 0.0, **content: object
) -> dict[str, Any]:
    environment: dict[str, Any] = {"type": "hot_cold"}
    if slow:
        environment["latency"] = {"scale_s": slow, "sigma": 0.1}
    part = {"name": "hot_cold", "environment": environment, "tasks": TASKS}
    suite = api.post("/suites", {"name": name, "content": {"parts": [part], **content}})
    return again(api, suite["suite"], name, entries)


def again(api: Api, suite: str, name: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return api.post("/evaluations", {"name": name, "suite": suite, "entries": entries})


def until(api: Api, made: dict[str, Any], done: Callable[[dict[str, Any]], bool], timeout_s: float = 400) -> Any:
    deadline = time.monotonic() + timeout_s
    while not done(body := api.get(f"/evaluations/{made['id']}")):
        assert time.monotonic() < deadline, body
        time.sleep(0.3)
    return body


def cells(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for row in body["table"] for cell in row["cells"]]


def ended(body: dict[str, Any]) -> bool:
    return body["state"] in ("done", "failed")


def said(system: System, body: dict[str, Any]) -> list[list[tuple[Any, ...]]]:
    """Every attempt of each cell: its task, its score, its turns in order."""
    api, found = system.api(), []
    with psycopg.connect(system.database_url) as conn:
        for cell in cells(body):
            no = api.run(cell["run"])["no"]
            assert all(check.ok for check in consistency_report(conn, no))
            rows = conn.execute(
                "SELECT e.draw, e.member, e.task::text, e.team_score, e.transcript::text FROM store.episode e "
                "WHERE e.run_id = %s AND e.status = 'finished' ORDER BY 1, 2", [no],
            ).fetchall()  # fmt: skip
            found.append(rows)
    return found


def test_greedy_play_repeats_and_models_have_the_same_tasks(system: System) -> None:
    api = system.api()
    first = until(api, evaluate(api, "greedy", [SMALL, OTHER]), ended)
    second = until(api, again(api, first["suite_id"], "again", [SMALL, OTHER]), ended)
    assert [cell["state"] for cell in (*cells(first), *cells(second))] == ["done"] * 4
    one, two = said(system, first), said(system, second)
    assert one == two, "greedy play differs between two evaluations"
    small, other = ([row[2] for row in rows] for rows in one)
    assert small == other
    assert len(set(small)) > 1
    assert one[0] != one[1], "two models say the same"
    board = api.get(f"/suites/{first['suite_id']}/leaderboard")["rows"]
    assert {row["label"] for row in board} == {"factory S", "larger"}
    assert {row["evaluation"] for row in board} == {second["id"]}, "the newest stands"


@pytest.mark.full
def test_killed_processes_and_a_stop_lose_and_double_nothing(system: System) -> None:
    api = system.api()
    made = evaluate(api, "killed", [SMALL], slow=1.5, attempts=ATTEMPTS, greedy=False)
    until(api, made, lambda body: cells(body)[0]["tasks_played"] >= 2)
    for name in ("rollout-worker", "driver", "device-worker"):
        system.kill(name)
    played = cells(until(api, made, lambda body: cells(body)[0]["tasks_played"] >= 4))[0]["tasks_played"]
    if played < TASKS:
        api.post(f"/evaluations/{made['id']}/stop")
        stopped = until(api, made, lambda body: body["state"] == "stopped" or ended(body))
        assert cells(stopped)[0]["tasks_played"] >= played, "a stop lost what was played"
        if stopped["state"] == "stopped":
            until(api, made, lambda body: api.run(cells(body)[0]["run"])["status"] == "paused")
            api.post(f"/evaluations/{made['id']}/resume")
    body = until(api, made, ended)
    cell = cells(body)[0]
    assert (cell["state"], cell["tasks_played"]) == ("done", TASKS)
    assert cell["attempts"] + cell["attempts_failed"] == TASKS * ATTEMPTS
    [rows] = said(system, body)
    assert len(rows) == len({row[:2] for row in rows}) == cell["attempts"]
