"""The supervisor, or a rollout worker that holds surplus, is killed in mid-run: the run goes on and its counts add up.

Every process and server by itself: test_random_kills.py.
"""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from flexmarl.launcher.processes import wait_until
from tests.support.counting import assert_accounted
from tests.support.ended import ended
from tests.support.promised import broken, read
from tests.support.system import Api, ApiError, System

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(1500)]

STEPS = 8
SPEC = {
    "agents": {"speaker": {}, "listener": {}},
    "environment": {"type": "reference_game"},
    "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
    "evaluation": {"every_steps": 6, "tasks": 16},
    "budget": {"train_steps": STEPS, "target": None},
}
PAUSED = {
    "environment": {"latency": {"scale_s": 0.05, "sigma": 1.2, "cap_s": 0.5}},
    "batch": {"tasks_per_step": 16, "episodes_per_task": 2, "micro_batch_groups": 8},
    "budget": {"train_steps": 4, "target": None},
    "evaluation": {"every_steps": 100, "tasks": 2},
    "checkpoints": {"every_steps": 100},
}
"""As many groups beyond a step's: 32 commands, of which a worker plays 16 at a time. So some are left to be held."""
REACHED_S = 120.0
LOOKED_S = 2.0
"""In that rollout workers look, told or not, whether they are to stand still, and no environment takes so long."""


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def started(api: Api, name: str) -> str:
    run_id = str(api.create_run(name=name, spec=SPEC)["id"])
    api.wait(run_id, lambda run: run["step"] >= 2, 300)
    return run_id


def alive(processes: dict[str, int]) -> list[str]:
    return [name for name, pid in processes.items() if not ended(pid)]


def assert_finished(system: System, api: Api, run_id: str) -> None:
    run = finished(api, run_id)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    report = api.consistency(run_id)
    assert report["ok"], report
    with psycopg.connect(system.database_url) as conn:
        assert_accounted(conn, run["no"])


def finished(api: Api, run_id: str) -> dict[str, Any]:
    """Wait for the end; the web process may be away for a while."""
    deadline = time.monotonic() + 180
    while True:
        try:
            return api.finish(run_id, 180)
        except (OSError, ApiError) as error:
            refused = isinstance(error, ApiError) and error.status < 500
            if refused or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


WITHHELD = """
CREATE FUNCTION withheld() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER withheld BEFORE UPDATE ON store.command FOR EACH ROW
  WHEN (OLD.kind = 'optimizer_step' AND NEW.status = 'taken') EXECUTE FUNCTION withheld()
"""
HELD = "SELECT no, takes, body FROM store.command WHERE run_id = %s AND held AND status = 'taken'"
PLAYING = """
SELECT FROM store.command
WHERE run_id = %s AND kind = 'play_groups' AND status IN ('open', 'taken') AND NOT held LIMIT 1
"""
ENGINES = "SELECT endpoint, secret FROM store.lease WHERE run_id = %s AND use = 'engine' AND endpoint <> ''"
PLAYED = """
SELECT draw, member, count(*), count(*) FILTER (WHERE status = 'finished') FROM store.episode
WHERE run_id = %s AND draw = ANY(%s) GROUP BY 1, 2
"""
ROWS = """
SELECT s.draw, s.member, s.attempt, s.role, s.turn, count(m.no), min(m.cohort) FROM store.sample s
LEFT JOIN (SELECT no, cohort, k.key FROM store.micro_batch, jsonb_array_elements(keys) AS k(key)
    WHERE run_id = %s AND status = 'applied') m
  ON m.key - 5 = jsonb_build_array(s.draw, s.member, s.attempt, s.role, s.turn)
WHERE s.run_id = %s AND s.draw = ANY(%s) GROUP BY 1, 2, 3, 4, 5
"""


@contextmanager
def no_step(conn: psycopg.Connection) -> Iterator[None]:
    """Let no trainer take a step while inside; whoever asks for one finds none."""
    conn.execute(WITHHELD)
    try:
        yield
    finally:
        conn.execute("DROP TRIGGER withheld ON store.command; DROP FUNCTION withheld")


def at_work(conn: psycopg.Connection, run_no: int) -> tuple[int, int]:
    """Return how many replies the run's engines are at, and how many tokens they have read and made until now."""
    busy = tokens = 0
    for endpoint, secret in conn.execute(ENGINES, [run_no]).fetchall():
        asked = urllib.request.Request(f"{endpoint}/stats", headers={"Authorization": f"Bearer {secret}"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            stats = json.load(answer)
        busy += stats["running"] + stats["waiting"]
        tokens += stats["prompt_tokens"] + stats["generated_tokens"]
    return busy, tokens


def stands_still(conn: psycopg.Connection, run_no: int) -> bool:
    """Tell whether a worker has what is held and nothing else, and no engine is at any of it: between two turns of
    what is played, engines are idle too, for long where the worker waits for its processor."""
    if not conn.execute(HELD, [run_no]).fetchall() or conn.execute(PLAYING, [run_no]).fetchone() is not None:
        return False
    before = at_work(conn, run_no)
    time.sleep(LOOKED_S)
    return before[0] == 0 and at_work(conn, run_no) == before and bool(conn.execute(HELD, [run_no]).fetchall())


def test_a_rollout_worker_that_is_killed_while_it_holds_surplus_costs_none_of_it(system: System) -> None:
    """Its successor takes what was held, asks no engine for any of it until the step is trained, and plays it anew."""
    api = system.api()
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        with no_step(conn):
            run = api.create_run(name="kill who holds", template="hot_cold", preset="april", spec=PAUSED)
            number = run["no"]
            assert wait_until(lambda: stands_still(conn, number), REACHED_S), "nothing was held"
            held = {no: (takes, body) for no, takes, body in conn.execute(HELD, [number]).fetchall()}
            before = at_work(conn, number)
            system.kill("rollout-worker")

            def taken_anew() -> bool:
                now = {no: takes for no, takes, _ in conn.execute(HELD, [number]).fetchall()}
                return all(now.get(no, 0) > takes for no, (takes, _) in held.items())

            assert wait_until(taken_anew, REACHED_S), "its successor takes every command, and finds it held"
            time.sleep(LOOKED_S)
            assert at_work(conn, number) == before, "what stood still stands still"
        ended = api.finish(run["id"], 300)
        draws = [group["draw"] for _, body in held.values() for group in body["groups"]]
        assert broken(ended, read(conn, number)) == []
        played = conn.execute(PLAYED, [number, draws]).fetchall()
        rows = conn.execute(ROWS, [number, number, draws]).fetchall()
    members = PAUSED["batch"]["episodes_per_task"]
    assert sorted(row[:2] for row in played) == [(draw, member) for draw in sorted(draws) for member in range(members)]
    assert {row[2:] for row in played} == {(1, 1)}, "each episode is there once, and finished"
    assert {row[5] for row in rows} == {1}, "each of its samples is trained once"
    assert min(row[6] for row in rows) > 0, "not by the step that they were surplus of"


def test_a_run_survives_sigkill_of_the_supervisor(system: System) -> None:
    api = system.api()
    run_id = started(api, "kill supervisor")
    workers = system.processes()
    system.process.kill()
    system.process.wait()
    assert wait_until(lambda: not alive(workers), 60), alive(workers)
    system.start()
    assert_finished(system, Api(system.url, api.token), run_id)
