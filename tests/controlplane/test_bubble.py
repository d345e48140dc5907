"""Idle device time by cause, on logs whose answer is known."""

import pytest

from flexmarl.controlplane.telemetry.timeline import bubble as bubbles
from flexmarl.controlplane.telemetry.timeline.bubble import Cause
from flexmarl.controlplane.telemetry.timeline.spans import cut, length, merged
from flexmarl.controlplane.telemetry.timeline.windows import Window
from flexmarl.store.reads.activity import CommandSpan, LeaseSpan
from flexmarl.store.telemetry.intervals import DeviceInterval
from tests.support.played import play

ENGINE, SECOND, TRAINER = 1, 2, 3


def lease(number, use, since=0.0, until=None, first_busy=0.0):
    return LeaseSpan(number, f"n.cpu{number}", "n", "cpu", "default", use, "held", 7, since, until, first_busy)


def busy(number, t0, t1, phase="rollout", policy="solver", tokens=0):
    return DeviceInterval(f"n.cpu{number}", number, phase, policy, t0, t1, tokens)


def asked(kind, t0, t1, lease_id=0, origin="", policy="solver"):
    return CommandSpan(1, kind, policy, lease_id, origin, 0, -1, t0, t0, t1, "done" if t1 else "taken")


def causes(row):
    return {cause: round(length(spans), 6) for cause, spans in row.causes.items()}


def split(leases, found, commands=(), pauses=(), window=(0.0, 100.0)):
    rows = bubbles.split(leases, found, commands, pauses, Window(*window))
    return {row.lease.lease_id: row for row in rows}


def test_one_step_gives_every_idle_second_its_cause() -> None:
    """0-10 start, 10-60 episodes (engine 12-50), 60-80 training (62-78), 80-90 weights, 90-100 nobody asks."""
    rows = split(
        [lease(ENGINE, "engine", first_busy=12.0), lease(TRAINER, "trainer", first_busy=8.0)],
        [busy(ENGINE, 12, 50), busy(TRAINER, 8, 10, "bind"), busy(TRAINER, 62, 78, "train")],
        [
            asked("play_groups", 10, 60, origin="train"),
            asked("accumulate", 60, 80, lease_id=TRAINER),
            asked("load_weights", 80, 90, lease_id=ENGINE),
        ],
    )
    assert causes(rows[ENGINE]) == {
        Cause.STARTING: 12,
        Cause.TURNS: 10,
        Cause.TRAINER: 20,
        Cause.HANDOVER: 10,
        Cause.DECISION: 10,
    }
    assert causes(rows[TRAINER]) == {
        Cause.STARTING: 8,
        Cause.SAMPLES: 50,
        Cause.HANDOVER: 4,
        Cause.WEIGHTS: 10,
        Cause.DECISION: 10,
    }


def test_an_engine_that_is_done_while_another_generates_waits_for_the_tail() -> None:
    rows = split(
        [lease(ENGINE, "engine"), lease(SECOND, "engine")],
        [busy(ENGINE, 0, 40), busy(SECOND, 0, 70)],
        [asked("play_groups", 0, 80, origin="train")],
        window=(0.0, 80.0),
    )
    assert causes(rows[ENGINE]) == {Cause.TAIL: 30, Cause.TURNS: 10}
    assert causes(rows[SECOND]) == {Cause.TURNS: 10}


def test_evaluation_checkpoint_and_pause_are_told_apart() -> None:
    rows = split(
        [lease(TRAINER, "trainer")],
        [],
        [asked("play_groups", 0, 30, origin="eval"), asked("write_checkpoint", 25, 40, lease_id=9)],
        [(50.0, None)],
    )
    assert causes(rows[TRAINER]) == {
        Cause.EVALUATION: 30, Cause.CHECKPOINT: 10, Cause.PAUSED: 50, Cause.DECISION: 10,
    }  # fmt: skip


def test_only_the_held_part_of_the_window_counts() -> None:
    rows = split([lease(ENGINE, "engine", since=20.0, until=60.0, first_busy=30.0)], [busy(ENGINE, 30, 50)])
    assert (rows[ENGINE].held_s, rows[ENGINE].busy_s) == (40.0, 20.0)
    assert causes(rows[ENGINE]) == {Cause.STARTING: 10, Cause.DECISION: 10}
    assert split([lease(ENGINE, "engine", since=200.0)], []) == {}


def test_shares_add_up_to_one_with_overlapping_everything() -> None:
    rows = split(
        [lease(ENGINE, "engine", first_busy=3.0), lease(TRAINER, "trainer", first_busy=5.0)],
        [busy(ENGINE, t, t + 2.5) for t in range(3, 90, 3)]
        + [busy(TRAINER, t, t + 5, "train") for t in range(5, 90, 4)],
        [asked("play_groups", t, t + 9, origin=("train", "eval")[t % 2]) for t in range(0, 90, 7)]
        + [asked("accumulate", t, t + 3, lease_id=TRAINER) for t in range(0, 90, 5)],
        [(10.0, 12.0), (11.0, 30.0)],
    )
    whole = bubbles.account(list(rows.values()), Window(0.0, 100.0))
    assert whole["busy_share"] + sum(row["share"] for row in whole["causes"]) == pytest.approx(1.0, abs=1e-3)
    for row in rows.values():
        assert row.busy_s + sum(causes(row).values()) == pytest.approx(row.held_s)
    seconds = [row["seconds"] for row in whole["causes"]]
    assert seconds == sorted(seconds, reverse=True), "longest first"


def test_tokens_per_second_are_of_the_time_an_engine_was_held() -> None:
    found = [busy(ENGINE, 0, 10, tokens=300), busy(ENGINE, 10, 30, policy="critic", tokens=100)]
    rows = split([lease(ENGINE, "engine", until=50.0)], found)
    told = {row["policy"]: row for row in bubbles.rates(found, list(rows.values()))}
    assert (told["solver"]["tokens_per_s"], told["critic"]["tokens_per_s"]) == (6.0, 2.0)
    assert (told["critic"]["rollout_s"], told["critic"]["tokens"]) == (20.0, 100)


def test_cutting_spans_loses_nothing() -> None:
    inside, rest = cut([(0, 10), (20, 30)], merged([(5, 22), (24, 25), (25, 26), (40, 50)]))
    assert inside == [(5, 10), (20, 22), (24, 26)]
    assert rest == [(0, 5), (22, 24), (26, 30)]
    assert cut([(0, 1)], []) == ([], [(0, 1)])


@pytest.mark.django_db
def test_the_bubble_of_a_run_over_rest(api, editor, make_run, django_assert_max_num_queries) -> None:
    run = make_run(editor, "running")
    played = play(run)
    with django_assert_max_num_queries(6):
        found = api.get(f"/api/v1/runs/{run.id}/bubble?window_s=60").json()
    assert found["window_s"] == 60
    assert found["busy_s"] == pytest.approx(played.busy_s + 3, abs=0.5)
    assert 80 <= found["held_s"] <= 120, "two devices for 40 s and what the test took"
    assert found["busy_share"] + sum(row["share"] for row in found["causes"]) == pytest.approx(1.0, abs=2e-3)
    assert {row["policy"]: row["tokens"] for row in found["agents"]} == {"solver": 200}
    assert api.get(f"/api/v1/runs/{run.id}/bubble?step=99").status_code == 400
    assert api.get(f"/api/v1/runs/{run.id}/bubble?step=1&window_s=5").status_code == 400
    assert api.get(f"/api/v1/runs/{run.id}/bubble?window_s=0").status_code == 400


@pytest.mark.django_db
def test_the_timeline_says_why_devices_were_idle(api, editor, make_run) -> None:
    run = make_run(editor, "running")
    play(run)
    found = api.get(f"/api/v1/runs/{run.id}/timeline?window_s=60").json()
    for row in found["devices"]:
        idle = sum(high - low for low, high, _ in row["idle"])
        held = found["window"][1] - row["held_since"]
        assert idle == pytest.approx(row["bubble_share"] * held, abs=1.0)
    assert found["bubble"]["causes"][0]["seconds"] >= found["bubble"]["causes"][-1]["seconds"]


@pytest.mark.django_db
def test_the_cluster_timeline_hides_the_runs_of_others(admin_api, person, client_of, editor, make_run) -> None:
    run = make_run(editor, "running")
    play(run)
    found = admin_api.get("/api/v1/timeline?window_s=60").json()
    assert {row["run_key"] for row in found["devices"]} == {run.key}
    assert {interval[3] for row in found["devices"] for interval in row["intervals"]} == {"solver"}
    assert admin_api.get("/api/v1/timeline?pool=none").json()["devices"] == []
    stranger = client_of(person("operator", "olga", project="other")).get("/api/v1/timeline?window_s=60").json()
    assert {row["run_key"] for row in stranger["devices"]} == {""}
    assert {interval[3] for row in stranger["devices"] for interval in row["intervals"]} == {""}
    assert all(row["idle"] == [] for row in stranger["devices"])
    assert stranger["runs"] == []
