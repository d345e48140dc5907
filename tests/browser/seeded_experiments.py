"""An experiment with runs and a verdict, and a sweep with trials, for looking at."""

from typing import Any
from uuid import UUID

EXPERIMENT = UUID("01900000-0000-7000-8000-0000000000e1")
SWEEP = UUID("01900000-0000-7000-8000-0000000000e2")


def experiments(owner: Any, told: list[Any]) -> None:
    """Put three of the runs into an experiment, and make a sweep whose trials are two of them."""
    from flexmarl.controlplane.accounts.queries import actor_of_user
    from flexmarl.controlplane.experiments.actions import create_experiment, update_experiment
    from flexmarl.controlplane.experiments.models import Experiment
    from flexmarl.controlplane.experiments.plans import Draft
    from flexmarl.controlplane.runs import actions
    from flexmarl.controlplane.sweeps.actions import create_sweep
    from flexmarl.controlplane.sweeps.models import Sweep, SweepTrial

    actor = actor_of_user(owner)
    made = create_experiment(actor, "symbols", question="Do more symbols slow learning down?", notes="**First** look.")
    Experiment.objects.filter(pk=made.pk).update(id=EXPERIMENT)
    made = Experiment.objects.get(pk=EXPERIMENT)
    shown = told[:3]
    for run in shown:
        actions.update_run(actor, run, experiment="symbols")
    said = {"baseline": shown[0].key, "verdict": "inconclusive", "verdict_text": "Too few seeds."}
    update_experiment(actor, made, said)
    plan = {
        "parameters": [
            {
                "pointer": "/policies/*/optimizer/learning_rate",
                "type": "float",
                "low": 0.0001,
                "high": 0.01,
                "log": True,
            },
            {"pointer": "/seed", "type": "choice", "values": [1, 2, 3]},
        ],
        "method": "tpe",
    }
    swept = create_sweep(actor, "rates", Draft(spec=shown[0].spec), plan, experiment="symbols")
    Sweep.objects.filter(pk=swept.pk).update(id=SWEEP, state="stopped", reason_text="stopped by ada")
    for number, (run, tried, value) in enumerate(zip(shown, (0.001, 0.004, 0.0002), (0.71, 0.83, 0.4), strict=True), 1):
        values = {"/policies/*/optimizer/learning_rate": tried, "/seed": number}
        state, why = ("done", "") if number < 3 else ("stopped", "reward/team was 0.4 at step 12, the median 0.77.")
        SweepTrial.objects.create(
            sweep_id=SWEEP, number=number, values=values, run=run, state=state, objective=value, why=why
        )
