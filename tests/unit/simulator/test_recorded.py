"""A recorded load: cut into stages, played again, and the machines' constants read off it, by hand-made records."""

from dataclasses import fields
from typing import Any

import pytest

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.timings import Commanded, Decoded, RunRows
from flexmarl.simulator import Scenario, simulate
from flexmarl.simulator.prediction.calibrating import fit
from flexmarl.simulator.scenarios.recorded import (
    RecordedDraws,
    RecordedEpisode,
    RecordedTurn,
    RecordedWaits,
    record_of,
    workload_of_record,
)
from flexmarl.simulator.scenarios.scenario import Delays, EngineModel, Host, Machine, TrainerModel

TEAM = {
    "agents": {"speaker": {}, "listener": {}},
    "environment": {"type": "reference_game"},
    "batch": {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 1},
}


def episode(draw: int, member: int, took: float = 10.0, score: float = 0.5) -> RecordedEpisode:
    return RecordedEpisode(draw, member, draw // 2, 100.0, 100.0 + took, score, (("speaker", 0), ("listener", 0)))


def turns(draw: int, member: int, reply: int = 4, latency: float = 2.0) -> list[RecordedTurn]:
    return [RecordedTurn(draw, member, role, 0, 7, reply, latency) for role in ("listener", "speaker")]


def test_what_turns_do_not_explain_is_the_environments() -> None:
    record = record_of([episode(0, 0)], turns(0, 0), ())
    ((lot,),) = record.groups
    assert [name for name, *_ in lot.asked] == ["speaker", "listener"]
    assert lot.widths == (1, 1)
    assert lot.waits == (3.0, 3.0)  # ten seconds, of which two replies took two each


def test_roles_that_are_asked_together_share_a_stage() -> None:
    ((lot,),) = record_of([episode(0, 0)], turns(0, 0), [frozenset({"speaker", "listener"})]).groups
    assert lot.widths == (2,)
    assert lot.waits == (8.0,)


def test_draws_beyond_the_record_play_it_again() -> None:
    rows = [(episode(draw, member, score=draw / 10), turns(draw, member, reply=draw + 1))
            for draw in range(10) for member in range(2)]  # fmt: skip
    record = record_of([one for one, _ in rows], [turn for _, own in rows for turn in own], ())
    plays = RecordedDraws(record, 0)
    scores = [plays.script(draw, 0, 2, 1, draw).score for draw in range(20)]
    assert scores == [*(draw / 10 for draw in range(10))] * 2
    assert plays.script(3, 5, 8, 1, 3).score == 0.3
    assert [asked[3] for asked in plays.script(13, 0, 2, 1, 13).turns] == [4, 4]
    assert RecordedDraws(record, 1).script(0, 0, 2, 1, 0).score == 0.2  # another seed begins elsewhere


def told(**rows: object) -> RunRows:
    """Rows of a run that tells nothing beside what is given."""
    nothing: dict[str, Any] = {field.name: [] for field in fields(RunRows)}
    return RunRows(**(nothing | {"lasted": {}, "parameters": {}, "turns": (0.0, 0.0, 0.0), "cores": 0} | rows))


def test_constants_are_read_off_a_record() -> None:
    """One engine: 8 replies of 10 tokens at once take 1.7 s; a lone one takes 1 s: batch is 10."""
    decoded = [Decoded("speaker", 10, 80, 0, 1.7), Decoded("speaker", 10, 10, 0, 1.0)] * 4
    trained = [Commanded(1, "accumulate", "speaker", 0.0, 1.0, 0.02 * n + 1.0, 1, n) for n in (100, 200) * 4]
    trained += [Commanded(1, "optimizer_step", "speaker", 0.0, 1.0, 0.5, 0, 0)] * 4
    spec = resolve(TEAM, preset="sync").spec
    found = fit(spec, told(decoded=decoded, commanded=trained, lasted={("load", "speaker"): [0.25]}, cores=2))
    assert found.machine.host == Host(cores=2), "of others nothing is told"
    engine, trainer = found.machine.engine, found.machine.trainer
    assert (engine.token, engine.batch) == (pytest.approx(0.1), pytest.approx(10.0))
    assert (found.at_once, found.tokens_s) == (pytest.approx(4.5), pytest.approx(90 / 2.7))
    assert (trainer.token, trainer.micro_batch) == (pytest.approx(0.02), pytest.approx(1.0))
    assert (trainer.step, engine.load) == (0.5, 0.25)
    at_mean = 0.1 * (1 + 3.5 / 10)
    said = [RecordedTurn(0, 0, "speaker", 0, 5, 10, 1.0 + 10 * at_mean)]
    assert found.beside_engine_s(said) == pytest.approx(1.0)  # what the engine did not take of the turn


def test_where_the_workers_time_is_told_an_episode_waits_for_nothing_else() -> None:
    ((lot,),) = record_of([episode(0, 0)], turns(0, 0), (), waits=None).groups
    assert lot.waits == (0.0, 0.0)


def test_a_simulation_that_is_recorded_and_played_again_takes_as_long() -> None:
    """Arithmetic: replies of 4 tokens at 0.5 s, waits of 3 s behind each of two stages, no delays of our own."""
    record = record_of([episode(d, m) for d in range(4) for m in range(2)],
                       [turn for d in range(4) for m in range(2) for turn in turns(d, m)], ())  # fmt: skip
    none = Delays(report=0.0, decide=0.0, hop=0.0, pick_up=0.0, start=0.0)
    machine = Machine(
        engine=EngineModel(token=0.5, batch=1e6, prefill=1e9, load=0.0),
        trainer=TrainerModel(token=0.0, micro_batch=0.0, step=1.0, create=0.0),
        delays=none,
    )
    spec = resolve(TEAM, preset="sync").spec
    scenario = Scenario(spec=spec, workload=workload_of_record(record), machine=machine, steps=3)
    played = simulate(scenario)
    per_policy_steps = 1.0 * len(spec.policies)  # one trainer: policies step one after the other
    assert played.step_s == pytest.approx(2 * 2.0 + 2 * 3.0 + per_policy_steps, abs=0.01)
    assert simulate(scenario).figures() == played.figures()


def test_a_late_start_is_a_part_of_the_episode_where_all_begin_at_once() -> None:
    late = episode(1, 0)._replace(began=104.0, ended=114.0)
    rows, said = [episode(0, 0), late], [*turns(0, 0), *turns(1, 0)]
    waits = [group[0].waits for group in record_of(rows, said, (), waits=RecordedWaits(starts=True)).groups]
    assert waits == [(3.0, 3.0), (7.0, 3.0)]
    assert [group[0].waits for group in record_of(rows, said, ()).groups] == [(3.0, 3.0)] * 2


def test_a_role_that_is_asked_again_begins_a_stage_of_its_own() -> None:
    rows = [RecordedTurn(0, 0, "speaker", number, 7, 4, 2.0) for number in range(2)]
    one = RecordedEpisode(0, 0, 0, 100.0, 110.0, 0.5, (("speaker", 0), ("speaker", 1)))
    ((lot,),) = record_of([one], rows, [frozenset({"speaker", "listener"})]).groups
    assert lot.widths == (1, 1)
