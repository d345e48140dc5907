"""Pages of a run with more steps than a chart has points: what speaks of single steps reads each of them."""

import re

import pytest

from flexmarl.contracts.decisions import Metric
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.control.decisions import _write_metrics
from tests.support.controlplane import set_state
from tests.support.played import play

pytestmark = pytest.mark.django_db

STEPS = 1000
BEST = 613


@pytest.fixture
def run(editor, make_run):
    run = make_run(editor, RunStatus.RUNNING)
    play(run)
    conn = store_connection()
    points = [
        (float(step), Metric(name, step, value))
        for step in range(4, STEPS + 1)
        for name, value in (("reward/team", 0.001 * step), ("time/step", 1.0 + step % 7), ("time/rollout", 0.5))
    ]
    points += [(float(s), Metric("eval/solved", s, 0.9 if s == BEST else 0.5)) for s in (300, BEST, STEPS)]
    _write_metrics(conn, run.no, points)
    progress = '{"eval_solved": 0.5, "eval_best": 0.9, "eval_step": 1000}'
    conn.execute("UPDATE store.run_state SET progress = progress || %s::jsonb WHERE run_id = %s", [progress, run.no])
    set_state(run, step=STEPS)
    return run


def cells(html: str) -> list[str]:
    return re.findall(r"<title>(steps? [^<]*), team reward", html)


def test_every_step_of_a_long_run_has_its_cell(browser, run) -> None:
    page = f"/runs/{run.key}"
    newest = cells(browser.get(page).content.decode())
    assert newest == [f"step {step}" for step in range(901, 1001)]
    whole = browser.get(f"{page}?bar=all").content.decode()
    assert cells(whole)[1] == "steps 11 to 20"
    assert len(cells(whole)) == 100
    assert 'href="?bar=11"' in whole, "a cell of many steps opens them"
    inside = browser.get(f"{page}?bar=501").content.decode()
    assert cells(inside) == [f"step {step}" for step in range(501, 601)]
    assert 'href="?bar=401"' in inside
    assert "parts/summary?bar=501" in inside, "what is read again stays at these steps"


def test_time_per_step_shows_the_newest_steps_one_by_one(browser, run) -> None:
    told = browser.get(f"/runs/{run.key}/figures").json()
    xs = told["figures"]["step_time"]["data"][0]["x"]
    assert told["lists"][xs["$"]] == [float(step) for step in range(961, 1001)]


def test_the_best_evaluation_names_the_step_at_which_it_was(browser, run) -> None:
    text = browser.get(f"/runs/{run.key}/parts/summary").content.decode()
    assert f"best 90 %, step {BEST}" in text
