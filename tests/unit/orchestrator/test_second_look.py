"""Trainers are looked at a second time only where something came of the first look: elsewhere nothing would."""

import pytest

from flexmarl.orchestrator import orchestrator as core
from flexmarl.orchestrator.state.snapshots import encode
from flexmarl.simulator.runs import alone
from flexmarl.simulator.scenarios.library import compose

SMALL = {"tasks_per_step": 4, "episodes_per_task": 4, "micro_batch_groups": 1, "rollout_groups": 1}


@pytest.mark.parametrize(
    ("workload", "preset", "least"),
    [("hub", "flexmarl", 300), ("hub", "roll_flash", 150), ("long_tail", "bounded_async", 4)],
)
def test_a_look_that_is_left_out_changes_nothing(monkeypatch, workload: str, preset: str, least: int):
    looks, left_out = [0], [0]
    drive_trainer, explain, drive = core.drive_trainer, core._explain, core.Orchestrator._drive

    def counted(ctx):
        looks[0] += 1
        drive_trainer(ctx)

    def also_looked(ctx):
        if looks[0] == 1 and (ctx.state.checkpoints or ctx.state.cohorts):
            before = encode(ctx.state), len(ctx.commands), len(ctx.void), len(ctx.rulings), len(ctx.notes)
            drive_trainer(ctx)
            assert (encode(ctx.state), len(ctx.commands), len(ctx.void), len(ctx.rulings), len(ctx.notes)) == before
            left_out[0] += 1
        explain(ctx)

    def anew(self, ctx, event):
        looks[0] = 0
        drive(self, ctx, event)

    monkeypatch.setattr(core, "drive_trainer", counted)
    monkeypatch.setattr(core, "_explain", also_looked)
    monkeypatch.setattr(core.Orchestrator, "_drive", anew)
    losses = {"rates": [{"use": "engine", "every": 200}, {"use": "trainer", "every": 150}]}
    cluster = alone(compose(workload, preset, {"spec": {"batch": SMALL}, "faults": losses}))
    while len(cluster.log.stepped) < 4:
        assert cluster.clock.play()
    assert left_out[0] > least
