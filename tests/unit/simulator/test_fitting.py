"""What ended runs tell of speed: each estimator gives back what rows were made with."""

import random
from dataclasses import fields, replace
from typing import Any

import pytest

from flexmarl.contracts.timings import CohortRollout, CommandDelay, Commanded, Decoded, RunRows, Settled, Worked
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
        idle = free < created + 0.005
        free = max(created + 0.005, free) + 0.004 + 0.02 + (0.015 if idle else 0.0)
        rows.append(commanded(no, "accumulate", 0.02, created, free))
    told = {"platform.carry": 0.004, "platform.fetch": 0.015}
    assert estimates.carrying(rows, 0.005) == pytest.approx(told, rel=0.05)
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


def test_facts_that_are_decided_on_together_cost_the_driver_nothing_each() -> None:
    """Their writing takes so long, one less than another; that some come behind others is no work of the driver."""
    rng, settled = random.Random(1), []
    for burst in range(20):
        ended = [10.0 * burst + 0.0005 * n for n in range(20)]
        settled += [Settled(finished, finished + 0.06 + rng.uniform(-0.02, 0.02)) for finished in ended]
    found = estimates.driver(settled, 0.003)
    assert found["platform.decide"] < 0.0008
    assert found["platform.settle"] == pytest.approx(0.057, rel=0.05)


def test_what_is_written_beside_trainers_takes_no_longer_by_itself() -> None:
    rows = beside_each_other()
    beside = [Settled(n + 0.3, n + 0.3 + 1.5 * 0.01) for n in range(40)]
    hops = [CommandDelay(n + 0.3, 1.5 * 0.004) for n in range(40)]
    told = estimates.alone(replace(rows, settled=beside, hops=hops, picked_up=[CommandDelay(0.9, 0.002)]))
    assert estimates.driver(told.settled) == pytest.approx({"platform.report": 0.01}, rel=0.02)
    assert [row.seconds for row in told.hops] == pytest.approx([0.004] * 40, rel=0.02)
    assert told.picked_up == [CommandDelay(0.9, 0.002)]


def test_where_no_fact_waits_only_the_way_is_told() -> None:
    assert estimates.driver([Settled(float(n), n + 0.01) for n in range(30)]) == pytest.approx(
        {"platform.report": 0.01}
    )


def test_workers_take_what_of_a_rollout_no_engine_took() -> None:
    played = [CohortRollout(100.0 * n, 100.0 * n + 3.0, 1000) for n in range(4)]
    generated = [(100.0 * n + 1.0, 100.0 * n + 2.0) for n in range(4)]
    assert estimates.turns(played, generated) == pytest.approx(0.002)


def beside_each_other() -> RunRows:
    """Gradients of two sizes and decode steps on two cores; while episodes are played two others want a core as well.

    Rollout workers play for the first half of each second; what works then takes 1.5 times as long, all by itself.
    """
    nothing: dict[str, Any] = {field.name: [] for field in fields(RunRows)}
    trained, decoded, worked = [], [], []
    for second in range(40):
        for place, slow in ((0.3, 1.5), (0.6, 1.0)):
            tokens = 100 if second % 2 else 400
            alone = 0.01 + 1e-4 * tokens
            began = second + place
            trained.append(Commanded(1, "accumulate", "solver", began, began + slow * alone, slow * alone, 8, tokens))
            worked.append(Worked(began, began + slow * alone, alone))
        for place, size in ((0.0, 10), (0.1, 40)):
            alone = 2 * (0.002 + 1e-5 * size)
            decoded.append(Decoded("solver", 2, 2 * size, 0, 1.5 * alone, second + place, alone))
            worked.append(Worked(second + place, second + place + 1.5 * alone, alone))
    told = {
        "commanded": trained,
        "decoded": decoded,
        "worked": worked,
        "cores": 2,
        "open": [(float(second), second + 0.5) for second in range(40)],
        "lasted": {},
        "parameters": {},
        "turns": (0.0, 0.0, 0.0),
    }
    return RunRows(**(nothing | told))


def test_what_others_on_the_host_slow_down_is_told_apart_from_what_it_takes_alone() -> None:
    rows = estimates.alone(beside_each_other())
    assert estimates.line(estimates.sizes(rows.commanded)) == pytest.approx(
        {"trainer.micro_batch": 0.01, "trainer.token": 1e-4}, rel=0.02
    )
    found = estimates.decoding(rows.decoded)
    assert (found["engine.token"], found["engine.row"]) == (
        pytest.approx(0.00201, rel=0.02),
        pytest.approx(1e-5, rel=0.05),
    )


def test_two_that_work_beside_each_other_tell_one_slowness_together() -> None:
    """A gradient that took 2 times as long as its work and decode steps that took 1.5 times, at the same time."""
    rows = beside_each_other()
    worked = [Worked(0.0, 1.0, 0.5), Worked(0.0, 0.9, 0.6)]
    hops = [CommandDelay(0.1, 0.35), CommandDelay(5.0, 0.35)]
    told = estimates.alone(replace(rows, worked=worked, hops=hops))
    assert [row.seconds for row in told.hops] == pytest.approx([0.2, 0.35])


def test_others_are_as_many_as_leave_work_the_part_of_a_core_that_it_had() -> None:
    rows = beside_each_other()
    told = {"platform.playing": 2.0, "platform.both": 2.0}
    assert estimates.others(rows) == pytest.approx(told), "what trains by itself hardly waits"

    def slow(one: Worked) -> float:
        return 1.25 if one.began % 1.0 > 0.5 else 4.0 / 3.0 if one.began % 1.0 > 0.2 else 1.0

    slower = [replace(one, cpu=one.cpu / slow(one)) for one in rows.worked]
    told = {"platform.playing": 2.0, "platform.training": 1.5, "platform.both": 3.0}
    assert estimates.others(replace(rows, worked=slower)) == pytest.approx(told)


def test_work_that_is_told_of_is_none_of_the_others() -> None:
    """Steps of a second trainer throughout, of which nobody knows what they took of the processor."""
    rows = beside_each_other()
    beside = [*rows.worked, *(Worked(float(n), n + 1.0, 0.0) for n in range(40))]
    told = {"platform.playing": 1.0, "platform.both": 1.0}
    assert estimates.others(replace(rows, worked=beside)) == pytest.approx(told)


def test_a_run_that_tells_no_cores_or_too_little_work_tells_nothing_of_others() -> None:
    rows = beside_each_other()
    assert estimates.others(replace(rows, cores=0)) == {}
    assert estimates.others(replace(rows, worked=rows.worked[:7])) == {}
    assert estimates.others(replace(rows, worked=[replace(one, cpu=0.0) for one in rows.worked])) == {}


def test_few_small_gradients_say_what_is_fixed_beside_many_large_ones() -> None:
    """Large ones of two policies differ as if nothing were fixed; a small one that is as slow says otherwise."""
    large = [Gradients(count=100, tokens=size, seconds=6e-5 * size) for size in (130.0, 160.0, 190.0, 220.0)]
    small = Gradients(count=8, tokens=16.0, seconds=0.006)
    found = estimates.line([*large, small])
    assert found["trainer.micro_batch"] + 16 * found["trainer.token"] == pytest.approx(0.006, rel=0.2)
    assert found["trainer.micro_batch"] + 175 * found["trainer.token"] == pytest.approx(6e-5 * 175, rel=0.1)


def test_runs_that_cut_differently_tell_together_what_a_token_takes() -> None:
    """Equal micro-batches tell nothing alone; a run of small ones and a run of large ones do."""
    large, small = (
        [commanded(n, "accumulate", 0.01 + 1e-4 * size, 0.0, 1.0, size) for n in range(30)] for size in (800, 20)
    )
    both = [*estimates.sizes(large), *estimates.sizes(small)]
    assert not estimates.tell_tokens(estimates.sizes(large))
    assert estimates.line(both) == pytest.approx({"trainer.micro_batch": 0.01, "trainer.token": 1e-4})
