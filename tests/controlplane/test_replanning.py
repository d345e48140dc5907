"""Running runs planned anew: looked at, proposed another split by measured rates, applied as a fork, dismissed."""

import json
import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from flexmarl.contracts.timings import Commanded, Decoded, RunRows, TurnLengths
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments.models import StoredPlan
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.simulations import replanning
from flexmarl.controlplane.simulations.models import RunReplan
from flexmarl.controlplane.simulations.replan_thread import look_and_apply
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts, register_node
from flexmarl.store.data import lineage
from flexmarl.store.reads import activity, device_use, timings
from tests.controlplane.test_checkpoints import keep
from tests.support.controlplane import key, set_state
from tests.support.markup import markup

pytestmark = pytest.mark.django_db

STEPS, STEP_S = 30, 14.0
DEVICES = {"engine": 2, "trainer": 2}


@pytest.fixture
def api(editor, client_of):
    return client_of(editor)


@pytest.fixture
def run(editor, make_run) -> Run:
    """A run of four devices, whose plan assumed that engines are ten times as fast as they are."""
    run = make_run(
        editor,
        "running",
        resources={"rollout_devices": 2, "training_devices": 2},
        batch={"tasks_per_step": 4, "episodes_per_task": 4, "micro_batch_groups": 1, "rollout_groups": 4},
        budget={"train_steps": 400, "target": None},
    )
    figures = {
        f"{name} {policy}": {"low": value, "likely": value, "high": value}
        for policy in ("speaker", "listener")
        for name, value in (
            ("engine.token", 0.02), ("engine.row", 0.01), ("engine.prompt", 1e-5), ("engine.load", 0.01),
            ("trainer.token", 1e-4), ("trainer.micro_batch", 1e-4), ("trainer.step", 0.01),
        )
    }  # fmt: skip
    ends = {"low": 0.9, "likely": 1.4, "high": 1.5}
    told = dict.fromkeys(("step_s", "tokens_s", "hours", "device_hours", "cost"), ends)
    busy = {"utilisation": {"engine": ends, "trainer": ends}}
    plan = StoredPlan.objects.create(figures=figures, prediction={**told, **busy, "why": []})
    Run.objects.filter(pk=run.pk).update(plan=plan)
    hold(run)
    steps(run, STEPS, time.time())
    set_state(run, step=STEPS)
    keep(run, 25)
    return Run.objects.select_related("state").get(pk=run.pk)


def hold(run: Run) -> None:
    conn = store_connection()
    facts = [DeviceFacts(f"box.cpu{i}", "cpu", i, "CPU share", 2**33) for i in range(4)]
    register_node(conn, NodeFacts("box", "127.0.0.1:1", "n", "1", {}), facts)
    uses = [use for use, count in DEVICES.items() for _ in range(count)]
    for no, use in enumerate(uses):
        conn.execute(
            "INSERT INTO store.lease (device_id, run_id, use, pool) VALUES (%s, %s, %s, 'default')",
            [f"box.cpu{no}", run.no, use],
        )


def steps(run: Run, until: int, now: float) -> None:
    for step in range(until):
        store_connection().execute(
            "INSERT INTO store.metric (run_id, name, stat, step, value, at)"
            " VALUES (%s, 'time/step', 'mean', %s, %s, to_timestamp(%s))"
            " ON CONFLICT (run_id, name, agent, stat, step) DO UPDATE SET at = excluded.at",
            [run.no, step, STEP_S, now - STEP_S * (until - 1 - step)],
        )


def told(slow: float) -> RunRows:
    """What a run tells whose decode steps take so many times what its plan assumed."""
    empty: dict[str, list[Any]] = {
        name: [] for name in ("settled", "played", "open", "generated", "picked_up", "hops", "starts", "worked")
    }
    policies = ("speaker", "listener")
    decoded = [
        Decoded(policy, count, count * rows, 0, slow * count * (0.01 + 0.01 * rows))
        for policy in policies for rows in (1, 2, 4) for count in (20, 40)
    ]  # fmt: skip
    return RunRows(
        decoded=decoded,
        commanded=[
            Commanded(1, "accumulate", policy, 0.0, 0.01, 1e-4 * (1 + size), 4, size)
            for policy in policies for size in (50, 100, 200)
        ],
        lasted={("load", policy): [0.01] * 8 for policy in policies},
        parameters={},
        roles=[TurnLengths(policy, 4.0, 4.0, 0.0) for policy in policies],
        turns=(2.0, 0.0, 0.0),
        cores=0,
        **empty,
    )  # fmt: skip


@pytest.fixture
def measured(monkeypatch) -> dict[str, Any]:
    """What the run's rows tell: as slow as `slow` says."""
    tells = {"slow": 10.0}
    monkeypatch.setattr(timings, "read", lambda conn, no, since=None: told(tells["slow"]))
    return tells


def look(run: Run) -> RunReplan:
    """Look at a run now, whenever it is due."""
    RunReplan.objects.filter(pk=run.pk).update(next_look_at=timezone.now())
    found = replanning.look(run.pk)
    assert found is not None
    return found


def proposed(run: Run) -> RunReplan:
    """Let a run be proposed another split: the difference is seen, and seen again over later steps."""
    assert look(run).reason == "just_seen"
    later(run)
    return look(run)


def later(run: Run, seconds: float = 400.0) -> None:
    """Let whatever was changed be so many seconds old."""
    row = RunReplan.objects.get(pk=run.pk)
    moved = {name: max(0.0, row.history[name] - seconds) for name in ("since", "wrong_since") if row.history[name]}
    RunReplan.objects.filter(pk=run.pk).update(history={**row.history, **moved})


def replan(api, run: Run) -> dict[str, Any]:
    answer = api.get(f"/api/v1/runs/{run.key}/replan")
    assert answer.status_code == 200, answer.content
    return answer.json()


def decide(api, run: Run, verb: str, **headers: str):
    headers = {"Idempotency-Key": key(), **headers}
    return api.post(f"/api/v1/runs/{run.key}/replan/actions/{verb}", {}, format="json", headers=headers)


def test_a_run_as_planned_is_proposed_nothing(api, run, measured) -> None:
    measured["slow"] = 1.1
    RunReplan.objects.all().delete()
    run.plan.prediction["step_s"]["likely"] = STEP_S
    run.plan.save()
    for _ in range(3):
        row = look(run)
        assert (row.state, row.reason) == ("watching", "within_band")
    found = replan(api, run)
    assert (found["version"], found["proposal"], found["past"]) == (row.version, None, [])
    assert {one["name"]: one["outside"] for one in found["rates"]}["generation"] is False
    assert replanning.look(run.pk) is None, "it is not due again yet"
    assert run.pk not in replanning.due()


def test_rates_that_differ_propose_another_split_once_with_its_figures(api, run, measured, browser) -> None:
    assert replanning.due() == [run.pk]
    row = proposed(run)
    assert (row.state, row.reason) == ("proposed", "proposed"), row.reason_text
    found = replan(api, run)
    own = found["proposal"]
    assert own["patch"] == {"resources": {"rollout_devices": 3, "training_devices": 1}}
    assert own["now_step_s"] == pytest.approx(STEP_S)
    assert own["then_step_s"] <= own["then_step_s_most"] < 0.9 * STEP_S
    assert own["cost_s"] >= 5 * STEP_S, "the steps since the checkpoint are made once more"
    assert own["saves_s"] == pytest.approx(own["gain_least"] * STEP_S * 370, rel=0.01)
    assert own["checkpoint"] == 25
    assert {one["name"] for one in own["because"]} >= {"generation", "step"}
    assert found["allowed_actions"] == ["apply", "dismiss"]
    assert "instead of" in found["reason_text"]
    for _ in range(3):
        later(run)
        row = look(run)
        assert (row.state, row.version) == ("proposed", found["version"]), (
            "what is proposed stands, and nothing else is"
        )
    page = markup(browser.get(f"/runs/{run.key}"))
    assert "rollout_devices 2 \u2192 3" in page
    assert "Go on with these" in page
    assert "<html" not in markup(browser.get(f"/runs/{run.key}/parts/replan"))


def test_what_is_applied_goes_on_from_the_checkpoint_and_takes_what_was_tried_along(
    api, run, measured, browser
) -> None:
    proposed(run)
    version = replan(api, run)["version"]
    stale = decide(api, run, "apply", **{"If-Match": f'W/"{version + 1}"'})
    assert stale.status_code == 412
    answer = decide(api, run, "apply", **{"If-Match": f'W/"{version}"'})
    assert answer.status_code == 201, answer.content
    made = Run.objects.get(pk=answer.json()["id"])
    assert made.parent_id == run.pk
    assert (made.spec["resources"]["rollout_devices"], made.spec["resources"]["training_devices"]) == (3, 1)
    assert made.spec["budget"]["train_steps"] == 375
    origin = lineage.origins(store_connection(), made.no)["speaker"]
    assert (origin.from_run, origin.from_step, bool(origin.state)) == (run.no, 25, True)
    verbs = store_connection().execute("SELECT run_id, body->>'verb' FROM store.inbox ORDER BY id").fetchall()
    assert [(int(no), verb) for no, verb in verbs] == [(made.no, "start"), (run.no, "stop")]
    found = replan(api, run)
    assert (found["state"], found["into"]) == ("applied", made.key)
    assert found["past"][0]["became"] == "applied"
    page = markup(browser.get(f"/runs/{run.key}/parts/replan"))
    assert made.key in page
    assert "Go on with these" not in page
    assert decide(api, run, "apply").status_code == 409
    assert AuditEntry.objects.filter(action="run.replan", target_id=run.id).exists()
    own = RunReplan.objects.get(run=made)
    assert own.history["before"]["setting"] != own.history["before"]["at"]
    assert own.assumed["source"] == "measured"


def applied_by_itself(run: Run) -> RunReplan:
    """Let a run that asks for it be proposed another split, and look as the service does."""
    run.spec["resources"]["replan"] = "apply"
    run.save(update_fields=["spec"])
    look(run)
    later(run)
    RunReplan.objects.filter(pk=run.pk).update(next_look_at=timezone.now())
    look_and_apply(run.pk)
    return RunReplan.objects.select_related("into").get(pk=run.pk)


def test_a_run_that_asks_for_it_goes_on_with_what_is_proposed(api, run, measured) -> None:
    row = applied_by_itself(run)
    assert (row.state, row.past[0]["became"]) == ("applied", "applied")
    made = Run.objects.get(pk=row.into_id)
    assert (made.parent_id, made.owner_id) == (run.pk, run.owner_id)
    assert made.spec["resources"]["rollout_devices"] == 3
    assert made.spec["resources"]["replan"] == "apply"
    look_and_apply(run.pk)
    assert Run.objects.filter(parent=run).count() == 1


def test_what_is_refused_to_the_owner_stays_proposed_and_says_why(api, run, measured, editor, browser) -> None:
    editor.is_active = False
    editor.save(update_fields=["is_active"])
    version = applied_by_itself(run).version
    editor.is_active = True
    editor.save(update_fields=["is_active"])
    found = replan(api, run)
    assert (found["state"], found["version"]) == ("proposed", version)
    assert "Only the owner" in found["proposal"]["refused"]
    assert "It was not applied by itself" in markup(browser.get(f"/runs/{run.key}/parts/replan"))
    later(run)
    RunReplan.objects.filter(pk=run.pk).update(next_look_at=timezone.now())
    look_and_apply(run.pk)
    assert replan(api, run)["state"] == "applied"


def test_a_dismissed_split_is_not_proposed_again(api, run, measured) -> None:
    proposed(run)
    answer = decide(api, run, "dismiss")
    assert answer.status_code == 200, answer.content
    assert (answer.json()["state"], answer.json()["reason"]) == ("watching", "dismissed")
    RunReplan.objects.filter(pk=run.pk).update(assumed=replanning._planned(run))
    later(run, 4000.0)
    look(run)
    later(run)
    row = look(run)
    assert (row.state, row.reason) == ("watching", "tried")
    assert decide(api, run, "dismiss").status_code == 409


def test_a_proposal_whose_reason_is_gone_is_withdrawn_and_the_next_one_waits_longer(api, run, measured) -> None:
    proposed(run)
    measured["slow"] = 1e-3
    later(run)
    assert look(run).state == "proposed", "just seen"
    later(run)
    row = look(run)
    assert (row.state, row.reason) == ("watching", "withdrawn")
    assert [one["became"] for one in row.past] == ["withdrawn"]
    measured["slow"] = 10.0
    later(run, 200.0)
    look(run)
    later(run, 130.0)
    row = look(run)
    assert (row.state, row.reason) == ("watching", "hold"), "330 s are more than one hold and less than four"
    assert row.next_look_at > timezone.now() + timedelta(seconds=60)


def test_a_checkpoint_that_was_written_meanwhile_costs_no_steps(api, run, measured) -> None:
    keep(run, STEPS + 5)
    own = proposed(run).proposal
    assert own["checkpoint"] == STEPS + 5
    assert own["cost_s"] >= 0.0


@pytest.mark.parametrize("why", ["no_checkpoint", "does_not_pay", "too_few_steps", "under_way", "fleet"])
def test_what_keeps_a_run_from_a_proposal_is_told(api, run, measured, why) -> None:
    conn = store_connection()
    if why == "no_checkpoint":
        conn.execute("DELETE FROM store.checkpoint")
    elif why == "does_not_pay":
        set_state(run, step=399)
    elif why == "too_few_steps":
        conn.execute("DELETE FROM store.metric WHERE step < 24")
    elif why == "under_way":
        set_state(run, pending_verb="pause")
    else:
        run.spec["resources"]["rollout_devices"] = {"min": 1, "max": 2}
        run.save(update_fields=["spec"])
    row = look(run)
    if row.reason == "just_seen":
        later(run)
        row = look(run)
    assert row.reason == why
    found = replan(api, run)
    assert found["proposal"] is None
    assert found["reason_text"]
    refused = decide(api, run, "apply")
    assert (refused.status_code, refused.json()["code"]) == (409, "invalid_state")


def test_a_run_without_a_plan_is_told_what_to_do_and_one_at_rest_is_not_looked_at(api, editor, make_run, run) -> None:
    other = make_run(editor, "running")
    found = replan(api, other)
    assert (found["state"], found["reason"]) == ("off", "no_plan")
    assert "plan_token" in found["reason_text"]
    assert other.pk not in replanning.due()
    set_state(run, status="paused")
    assert replanning.due() == []
    assert replan(api, run)["reason"] == "not_running"


def test_what_somebody_decided_meanwhile_stands(api, run, measured, monkeypatch) -> None:
    proposed(run)
    choose = replanning._compare

    def slowly(found: Any) -> None:
        choose(found)
        assert decide(api, run, "dismiss").status_code == 200

    monkeypatch.setattr(replanning, "_compare", slowly)
    RunReplan.objects.filter(pk=run.pk).update(next_look_at=timezone.now())
    assert replanning.look(run.pk) is None
    assert RunReplan.objects.get(pk=run.pk).reason == "dismissed"


def test_a_window_is_of_the_newest_steps_and_what_a_run_holds_is_counted_by_host(run) -> None:
    conn, now = store_connection(), time.time()
    since, until, count = activity.newest_steps(conn, run.no, 8)
    assert count == 8
    assert until - since == pytest.approx(8 * STEP_S)
    assert until == pytest.approx(now, abs=60)
    assert activity.newest_steps(conn, run.no, 100)[2] == STEPS - 1 - activity.WARM_STEPS
    assert device_use.held_devices(conn, run.no) == {"default": [4]}


def test_lengths_are_read_since_a_moment(run) -> None:
    conn = store_connection()
    for draw, turns in enumerate((2, 2, 6)):
        conn.execute(
            "INSERT INTO store.episode (run_id, draw, member, attempt, origin, status, cohort, scores, team_score, "
            "solved, turns, tokens, pins, task, transcript, started_at, finished_at) VALUES (%s, %s, 0, 1, 'train', "
            "'finished', 0, '{}', 0, false, %s, 8, '{}', '{}', %s, to_timestamp(%s), to_timestamp(%s))",
            [run.no, draw, turns, json.dumps([]), 1000.0 * draw, 1000.0 * draw + 1],
        )
        conn.execute(
            "INSERT INTO store.sample (run_id, draw, member, attempt, role, turn, policy, version, segments, "
            "n_prompt, n_response, finish, latency_ms, payload) VALUES (%s, %s, 0, 1, 'speaker', 0, 'speaker', 0, "
            "'{0,4}', 4, %s, 'stop', 400, '')",
            [run.no, draw, turns * 10],
        )
    whole, recent = timings.read(conn, run.no), timings.read(conn, run.no, 1500.0)
    assert (whole.roles[0].reply, whole.turns[0]) == (pytest.approx(100 / 3), pytest.approx(10 / 3))
    assert (recent.roles[0].reply, recent.turns[0]) == (60.0, 6.0)
