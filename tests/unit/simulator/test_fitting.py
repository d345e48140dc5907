"""What ended runs tell of speed: each estimator gives back what rows were made with."""

import random
from dataclasses import fields, replace
from typing import Any

import pytest

from flexmarl.contracts.paces import Commanded, Decoded, Played, RunRows, Settled
from flexmarl.simulator.prediction import estimates
from flexmarl.simulator.prediction.estimates import Gradients


def test_decoding_tells_a_step_from_what_requests_and_prompts_add() -> None:
    rng = random.Random(1)
    rows = []
    for _ in range(60):
        steps, batch = rng.randint(1, 5), rng.choice([1, 2, 16, 64])
        tokens, prompts = steps * batch, rng.choice([0, 8 * batch])
        seconds = (0.002 * steps + 3e-5 * tokens + 1e-5 * prompts) * rng.uniform(0.98, 1.02)
        rows.append(Decoded("solver", steps, tokens, prompts, seconds))
    found = estimates.decoding(rows)
    assert found["engine.token"] == pytest.approx(0.00203, rel=0.03)
    assert found["engine.row"] == pytest.approx(3e-5, rel=0.1)
    assert found["engine.prompt"] == pytest.approx(1e-5, rel=0.25)


def commanded(no: int, kind: str, seconds: float, created: float, done: float, tokens: int = 0) -> Commanded:
    return Commanded(1, kind, "solver", created, done, seconds, 8, tokens)


def test_gradients_tell_a_micro_batch_from_its_tokens_and_halve_what_cannot_be_told() -> None:
    rows = [commanded(no, "accumulate", 0.01 + 1e-4 * n, 0.0, 1.0, n) for no, n in enumerate([100, 200, 400, 800] * 5)]
    assert estimates.line(estimates.sizes(rows)) == pytest.approx({"trainer.micro_batch": 0.01, "trainer.token": 1e-4})
    alike = [commanded(no, "accumulate", 0.02, 0.0, 1.0, 100) for no in range(10)]
    assert estimates.line(estimates.sizes(alike)) == pytest.approx({"trainer.micro_batch": 0.01, "trainer.token": 1e-4})


def test_what_surrounds_a_trainers_work_is_told_behind_a_queue_too() -> None:
    rows, free = [], 0.0
    for no in range(40):
        created = 0.01 * no  # asked for faster than it is done: a queue
        free = max(created + 0.005, free) + 0.004 + 0.02
        rows.append(commanded(no, "accumulate", 0.02, created, free))
    assert estimates.carrying(rows, 0.005) == pytest.approx({"platform.carry": 0.004}, rel=0.05)
    stepped = [commanded(40, "optimizer_step", 0.02, 0.4, free + 0.035)]
    assert estimates.carrying(rows + stepped, 0.005)["platform.commit"] == pytest.approx(0.011, rel=0.05)


def test_the_driver_is_a_queue_with_one_server() -> None:
    settled, free = [], 0.0
    for burst in range(10):
        for _ in range(10):
            finished = 10.0 * burst
            begun = max(finished + 0.03, free)
            settled.append(Settled(finished, begun))
            free = begun + 0.002
    assert estimates.driver(settled) == pytest.approx({"platform.report": 0.03, "platform.decide": 0.002}, rel=0.1)


def test_where_no_fact_waits_only_the_way_is_told() -> None:
    assert estimates.driver([Settled(float(n), n + 0.01) for n in range(30)]) == pytest.approx(
        {"platform.report": 0.01}
    )


def test_workers_take_what_of_a_rollout_no_engine_took() -> None:
    played = [Played(100.0 * n, 100.0 * n + 3.0, 1000) for n in range(4)]
    generated = [(100.0 * n + 1.0, 100.0 * n + 2.0) for n in range(4)]
    assert estimates.turns(played, generated) == pytest.approx(0.002)


def beside_each_other() -> RunRows:
    """Gradients of two sizes and decode steps; whatever meets the other side takes 1.5 times as long.

    Rollout workers play for the first half of each second, and trainers work in the middle half of it.
    """
    nothing: dict[str, Any] = {field.name: [] for field in fields(RunRows)}
    trained, decoded = [], []
    for second in range(40):
        for place, played in ((0.3, True), (0.6, False)):
            tokens = 100 if second % 2 else 400
            seconds = (0.01 + 1e-4 * tokens) * (1.5 if played else 1.0)
            began = second + place
            trained.append(Commanded(1, "accumulate", "solver", began, began + seconds, seconds, 8, tokens))
        free = [Decoded("solver", 2, 2 * b, 0, 2 * (0.002 + 1e-5 * b), second + 0.02 * b / 10) for b in (10, 40)]
        beside = Decoded("solver", 1, 20, 0, 1.5 * (0.002 + 1e-5 * 20), second + 0.305)
        decoded += [*free, beside]
    open_ = [(float(second), second + 0.5) for second in range(40)]
    told = {
        "commanded": trained,
        "decoded": decoded,
        "open": open_,
        "lasted": {},
        "parameters": {},
        "turns": (0.0, 0.0),
    }
    return RunRows(**(nothing | told))


def test_what_others_on_the_host_slow_down_is_told_apart_from_what_it_takes_alone() -> None:
    rows, contention = estimates.alone(beside_each_other())
    assert contention == pytest.approx(1.5, rel=0.01)
    assert estimates.line(estimates.sizes(rows.commanded)) == pytest.approx(
        {"trainer.micro_batch": 0.01, "trainer.token": 1e-4}, rel=0.02
    )
    found = estimates.decoding(rows.decoded)
    assert (found["engine.token"], found["engine.row"]) == (
        pytest.approx(0.00201, rel=0.02),
        pytest.approx(1e-5, rel=0.05),
    )


def test_too_few_gradients_beside_the_playing_tell_nothing_of_it() -> None:
    rows = beside_each_other()
    first = replace(rows, commanded=rows.commanded[:10])
    assert estimates.alone(first)[1] is None


def test_few_small_gradients_say_what_is_fixed_beside_many_large_ones() -> None:
    """Large ones of two policies differ as if nothing were fixed; a small one that is as slow says otherwise."""
    large = [Gradients(count=100, tokens=size, seconds=6e-5 * size) for size in (130.0, 160.0, 190.0, 220.0)]
    small = Gradients(count=8, tokens=16.0, seconds=0.006)
    found = estimates.line([*large, small])
    assert found["trainer.micro_batch"] + 16 * found["trainer.token"] == pytest.approx(0.006, rel=0.2)
    assert found["trainer.micro_batch"] + 175 * found["trainer.token"] == pytest.approx(6e-5 * 175, rel=0.1)


def test_a_run_that_trains_beside_the_playing_throughout_takes_what_others_told() -> None:
    """Its few gradients at the edges of the playing are no measure of those alone."""
    rows = beside_each_other()
    free = [row for row in rows.commanded if row.created % 1.0 > 0.5]
    beside = [row for row in rows.commanded if row.created % 1.0 < 0.5]
    seldom = replace(rows, commanded=[*free[:8], *beside, *(replace(row, done=row.done + 100.0) for row in beside[:8])])
    crowded = replace(seldom, open=[*rows.open, *((began + 100.0, ended + 100.0) for began, ended in rows.open)])
    rows, contention = estimates.alone(crowded, 1.5)
    assert contention is None
    told = estimates.line(estimates.sizes(rows.commanded))
    assert told == pytest.approx({"trainer.micro_batch": 0.01, "trainer.token": 1e-4}, rel=0.02)


def test_what_a_node_carries_to_a_trainer_slows_down_the_playing_as_well() -> None:
    rows = beside_each_other()
    trained = [Commanded(1, "accumulate", "solver", n, n + 0.3, 0.1, 8, 100) for n in map(float, range(20))]
    free = [Decoded("solver", 2, 2 * b, 0, 2 * (0.002 + 1e-5 * b), n + 0.5) for n in range(20) for b in (10, 40)]
    carried = [Decoded("solver", 2, 40, 0, 1.5 * 2 * (0.002 + 1e-5 * 20), n + 0.1) for n in range(20)]
    told, _ = estimates.alone(replace(rows, commanded=trained, decoded=[*free, *carried], open=[]), 1.5)
    assert estimates.decoding(told.decoded)["engine.token"] == pytest.approx(0.00201, rel=0.01)


def test_runs_that_cut_differently_tell_together_what_a_token_takes() -> None:
    """Equal micro-batches tell nothing alone; a run of small ones and a run of large ones do."""
    large, small = (
        [commanded(n, "accumulate", 0.01 + 1e-4 * size, 0.0, 1.0, size) for n in range(30)] for size in (800, 20)
    )
    both = [*estimates.sizes(large), *estimates.sizes(small)]
    assert not estimates.tell_tokens(estimates.sizes(large))
    assert estimates.line(both) == pytest.approx({"trainer.micro_batch": 0.01, "trainer.token": 1e-4})
