"""A short run that exists to be measured: real engines, trainers and workers, through everything a run goes through.

What it tells is read like that of any ended run; plans say then that they rest on a profile.
"""

from dataclasses import replace
from typing import Any

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments.plans import Draft, overlay, required
from flexmarl.controlplane.runs.actions import create_run
from flexmarl.controlplane.runs.marks import Marks
from flexmarl.controlplane.runs.model_sources import CheckpointSources
from flexmarl.controlplane.runs.models import Run
from flexmarl.simulator.prediction.fitting import PROFILE_NAME

STEPS = 12
"""Train steps of a profile: the first three do not count."""
MOST_EPISODES = 4096
"""Episodes of a step, at most: a profile plays as many at once as the run would, if that is no more."""
LARGE = 3
"""Large micro-batches of a step, at least, beside which there is a small one with the rest of the groups: so both what
a micro-batch takes and what a token takes are told."""
FEW = 2
"""Episodes of an evaluation: the last one plays alone and tells what engines take for small batches."""
TAG = "profile"


def measure(actor: Actor, draft: Draft, project: str) -> Run:
    """Make a short run of a draft's team, and start it if the caller may. Raises what `create_run` does."""
    made = required(replace(draft, project=project, checkpoints=CheckpointSources(actor, project)))
    whole = Draft(spec=overlay(made.document, _short(made.spec)), preset=made.preset, template=made.template)
    note = "Profiling run: plans for similar teams are based on its measurements."
    start = actor.may(Scope.RUNS_ACT, project) or actor.may(Scope.RUNS_ACT_ANY, project)
    return create_run(actor, whole, project=project, note=note, start=start, marks=Marks(tags=(TAG,)))


def _short(spec: ExperimentSpec) -> dict[str, Any]:
    tasks = max(2, min(spec.batch.tasks_per_step, MOST_EPISODES // spec.batch.episodes_per_task))
    groups, own = max(1, (tasks - 1) // LARGE), spec.batch.micro_batch_groups
    if spec.mechanisms.trainer_protocol == "mini_batch":
        groups = 1
    elif 1 < own <= groups:
        groups, tasks = own, tasks // own * own + 1
    return {
        "name": f"{PROFILE_NAME}{spec.name}"[:64],
        "budget": {"train_steps": STEPS, "target": None},
        "batch": {
            "tasks_per_step": tasks,
            "micro_batch_groups": groups,
            "rollout_groups": min(spec.batch.rollout_groups, tasks),
        },
        "environment": {"latency": None},
        "resources": {"pace": {"micro_batch_s": 0.0, "row_s": 0.0, "step_s": 0.0}},
        "evaluation": {"every_steps": 1, "tasks": FEW},
    }
