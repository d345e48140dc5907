"""A run that is proposed other devices, as a look at it leaves its row."""

from datetime import UTC, datetime
from typing import Any

from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.simulations.choices import ReplanReason, ReplanState
from flexmarl.controlplane.simulations.models import RunReplan


def propose(run: Run) -> None:
    """Propose a run one more engine, after another proposal that was withdrawn."""
    now = datetime.now(UTC)
    rate = {"name": "generation", "of": "speaker", "unit": "tokens/s", "assumed": 90.0, "measured": 30.0, "felt": 0.4}
    change = {"pointer": "/resources/rollout_devices", "before": 2, "value": 3}
    proposal: dict[str, Any] = {
        "setting": "3+1", "instead_of": "2+2", "changes": [change], "patch": {"resources": {"rollout_devices": 3}},
        "now_step_s": 14.0, "then_step_s": 10.0, "then_step_s_most": 11.0, "gain": 0.29, "gain_least": 0.21,
        "cost_s": 60.0, "saves_s": 300.0, "steps_left": 100, "checkpoint": 4, "because": [rate], "why": ["More."],
        "looked_at": 6, "simulated": 2, "stopped": False, "measured_steps": 8, "replay_step_s": 13.5,
        "at": rfc3339(now),
    }  # fmt: skip
    RunReplan.objects.create(
        run=run, next_look_at=now, looked_at=now, state=ReplanState.PROPOSED, reason=ReplanReason.PROPOSED,
        assumed={"figures": {}, "step_s": 5.0, "source": "plan"}, history={"since": 0.0},
        rates=[{**rate, "ratio": 0.3333, "outside": True}], proposal=proposal,
        past=[{**proposal, "became": "withdrawn", "until": rfc3339(now)}],
    )  # fmt: skip
