"""Sweeps: what may be searched, who asks next, which runs are stopped, and a process killed between two steps."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from flexmarl.controlplane.runs.models import Operation, Run
from flexmarl.controlplane.sweeps import advancing
from flexmarl.controlplane.sweeps.asking import TriedValues, ask
from flexmarl.controlplane.sweeps.judging import below_median, next_rung, weak_at_rung
from flexmarl.controlplane.sweeps.models import Sweep, SweepTrial
from flexmarl.controlplane.sweeps.plan import SearchPlan
from tests.controlplane.test_comparison import points
from tests.support.controlplane import SPEC, key, set_state

ROOT = Path(__file__).resolve().parents[2]
RATE = {
    "pointer": "/policies/*/optimizer/learning_rate",
    "type": "float",
    "low": 0.0001,
    "high": 0.01,
    "log": True,
}
SIZE = {"pointer": "/batch/tasks_per_step", "type": "choice", "values": [8, 16]}


def begin(api, *parameters: dict[str, Any], **plan: Any):
    body = {"name": "rates", "spec": SPEC, "experiment": "rates", "plan": {"parameters": list(parameters), **plan}}
    return api.post("/api/v1/sweeps", body, format="json", HTTP_IDEMPOTENCY_KEY=key())


def ended(number: int, value: float, status: str = "completed") -> None:
    run = SweepTrial.objects.get(number=number).run
    points(run, [value] * 20)
    set_state(run, status=status, step=20)


def plan(**more: Any) -> SearchPlan:
    return SearchPlan.model_validate({"parameters": [RATE, SIZE], **more})


def test_a_grid_is_every_combination_once() -> None:
    asked, told = [], []
    while (values := ask(plan(method="grid"), told)) is not None:
        asked.append(tuple(values.values()))
        told.append(TriedValues(values, 0.0))
    assert asked == [(pytest.approx(a), b) for a in (0.0001, 0.001, 0.01) for b in (8, 16)]


@pytest.mark.parametrize("method", ["random", "tpe", "halving"])
def test_the_same_trials_ask_for_the_same_values(method: str) -> None:
    told: list[TriedValues] = []
    for number in range(9):
        values = ask(plan(method=method), told)
        assert values is not None
        assert values == ask(plan(method=method), list(told))
        assert 0.0001 <= values[RATE["pointer"]] <= 0.01
        told.append(TriedValues(values, None if number == 3 else float(number), open=number == 8))
    assert len({str(one.values) for one in told}) == 9


def test_tpe_searches_where_it_was_good() -> None:
    told: list[TriedValues] = []
    for _ in range(40):
        values = ask(plan(method="tpe"), told)
        assert values is not None
        told.append(TriedValues(values, -abs(values[RATE["pointer"]] - 0.008)))
    late = [one.values[RATE["pointer"]] for one in told[25:]]
    assert sum(rate > 0.004 for rate in late) > 7, late


def test_weak_runs_are_those_below_the_median_or_out_of_a_rung() -> None:
    good, bad = [(float(step), 1.0) for step in range(1, 31)], [(float(step), 0.1) for step in range(1, 31)]
    wide = plan(early_stop=True, grace_steps=5)
    assert below_median(wide, bad, [good] * 3).startswith("reward/team was 0.1 at step 30")
    assert not below_median(wide, bad, [good] * 2)
    assert not below_median(wide, bad[:4], [good] * 3)
    assert below_median(plan(goal="minimize", grace_steps=5), good, [bad] * 3)
    halving = plan(method="halving", grace_steps=5, reduction=3)
    assert [next_rung(halving, judged) for judged in range(3)] == [5, 15, 45]
    assert not weak_at_rung(halving, bad, [], 5)
    assert weak_at_rung(halving, bad, [good], 5)
    assert not weak_at_rung(halving, good, [bad] * 5, 5)


@pytest.mark.django_db
def test_a_sweep_is_refused_by_field_rule_and_legal_value(api) -> None:
    def refused(*parameters: dict[str, Any], **more: Any) -> list[tuple[str, str]]:
        answer = begin(api, *parameters, **more)
        assert answer.status_code == 400, answer.content
        return [(one["pointer"], one["code"]) for one in answer.json()["errors"]]

    assert refused({**SIZE, "pointer": "/batch/task_per_step"}) == [("/plan/parameters/0/pointer", "unknown_pointer")]
    (wrong,) = refused({**SIZE, "values": [8, -1]})
    assert wrong[0] == "/plan/parameters/0/values/1"
    assert refused(RATE, metric="reward/teem") == [("/plan/metric", "unknown_value")]
    assert refused({**RATE, "low": 1.0})[0][0].startswith("/plan/parameters/0")
    assert refused(RATE, parallel=0)[0][0] == "/plan/parallel"
    assert not Sweep.objects.exists()


@pytest.mark.django_db
def test_a_sweep_keeps_to_its_parallel_runs_and_ends_with_the_best(api) -> None:
    made = begin(api, SIZE, method="grid", parallel=1).json()
    advancing.advance_all()
    advancing.advance_all()
    assert Run.objects.count() == 1
    ended(1, 0.3)
    advancing.advance_all()
    assert [run.spec["batch"]["tasks_per_step"] for run in Run.objects.order_by("id")] == [8, 16]
    assert api.post(f"{made['url']}/actions/stop", HTTP_IDEMPOTENCY_KEY=key()).json()["state"] == "stopped"
    ended(2, 0.7)
    advancing.advance_all()
    found = api.get(made["url"]).json()
    assert ([one["objective"] for one in found["tried"]], found["best"]) == (pytest.approx([0.3, 0.7]), 2)
    assert found["state"] == "stopped"
    api.post(f"{made['url']}/actions/resume", HTTP_IDEMPOTENCY_KEY=key())
    advancing.advance_all()
    found = api.get(made["url"]).json()
    assert (found["state"], found["reason"]) == ("done", "complete")
    assert {run.experiment.name for run in Run.objects.all()} == {"rates"}
    assert api.delete(made["url"]).status_code == 204
    assert Run.objects.count() == 2


@pytest.mark.django_db
def test_pages_show_a_sweep_and_its_experiment(api, browser) -> None:
    made = begin(api, RATE, SIZE, trials=2).json()
    advancing.advance_all()
    ended(1, 0.25)
    advancing.advance_all()
    experiment = made["experiment"]["id"]
    for path, word in (
        ("/experiments", "rates"), (f"/experiments/{experiment}", "Move"), ("/sweeps", "rates"), ("/sweeps/new", "TPE"),
        (made["web_url"], "0.250"), (f"/compare?experiment={experiment}", "What differs"), ("/compare", "Nothing to"),
    ):  # fmt: skip
        answer = browser.get(path)
        assert answer.status_code == 200, path
        assert word in answer.content.decode(), path
    drawn = browser.get(f"{made['web_url']}/figures", headers={"X-Part": "1"}).json()["figures"]
    assert (drawn["best"]["summary"], len(drawn["parallel"]["data"])) == ("The best of reward/team is 0.250", 1)
    facets = browser.get(f"/compare/figures?experiment={experiment}", headers={"X-Part": "1"}).json()["figures"]
    assert list(facets) == ["facet-team"]


@pytest.mark.django_db
def test_weak_runs_are_stopped_and_say_why(api) -> None:
    begin(api, RATE, trials=4, parallel=4, early_stop=True, grace_steps=5)
    advancing.advance_all()
    for number, value in enumerate([0.9, 0.9, 0.9, 0.1], start=1):
        run = SweepTrial.objects.get(number=number).run
        points(run, [value] * 20)
        set_state(run, status="running", pending_verb="", step=20)
    advancing.advance_all()
    advancing.advance_all()
    assert list(Operation.objects.filter(verb="stop").values_list("run__trial__number", flat=True)) == [4]
    assert "the median of 3 others" in SweepTrial.objects.get(number=4).why


@pytest.mark.django_db
def test_a_sweep_whose_trials_all_fail_gives_up(api) -> None:
    begin(api, RATE, parallel=1)
    for number in (1, 2, 3):
        advancing.advance_all()
        set_state(SweepTrial.objects.get(number=number).run, status="failed", reason_text="no room")
    advancing.advance_all()
    row = Sweep.objects.get()
    assert (row.state, row.reason) == ("failed", "trials_fail")
    assert "no room" in row.reason_text


@pytest.mark.django_db
def test_a_sweep_has_the_rights_that_its_owner_has_now(api, editor) -> None:
    begin(api, RATE)
    editor.memberships.all().delete()
    advancing.advance_all()
    assert (Sweep.objects.get().state, Sweep.objects.get().reason) == ("failed", "no_rights")
    assert not Run.objects.exists()


KILLED = """
import os, signal, sys
import django
django.setup()
from flexmarl.controlplane.sweeps import advancing
real = advancing.runs.create_once
def between(*args, **options):
    if options["marks"].external_id.endswith("/2"):
        if sys.argv[1] == "after":
            real(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **options)
advancing.runs.create_once = between
advancing.advance_all()
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.django_db(transaction=True)
def test_a_process_killed_between_asking_and_creating_loses_nothing_and_creates_no_run_twice(api, moment: str) -> None:
    begin(api, RATE, method="tpe", trials=3, parallel=3)
    at = connection.settings_dict
    url = f"postgresql://{at['USER']}:{at['PASSWORD']}@{at['HOST']}:{at['PORT']}/{at['NAME']}"
    settings = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.test"}
    path = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, moment], check=False, env={**settings, "PYTHONPATH": path}, cwd=ROOT
    )
    assert killed.returncode == -signal.SIGKILL
    assert SweepTrial.objects.count() == Run.objects.count() == 1
    (first,) = [TriedValues(one.values, one.objective, open=True) for one in SweepTrial.objects.all()]
    advancing.advance_all()
    trials = list(SweepTrial.objects.order_by("number"))
    assert [one.number for one in trials] == [1, 2, 3]
    assert trials[1].values == ask(SearchPlan.model_validate(Sweep.objects.get().plan), [first])
    assert Run.objects.count() == len({one.run_id for one in trials}) == 3
