"""A suite in two versions and an evaluation of it: one model has played, one failed, one waits."""

from typing import Any
from uuid import UUID

SUITE = UUID("01900000-0000-7000-8000-0000000000e1")
EVALUATION = UUID("01900000-0000-7000-8000-0000000000e2")
TASKS, ATTEMPTS = 12, 4
PART = {"name": "hot_cold", "environment": {"type": "hot_cold"}, "tasks": TASKS}
CONTENT = {"parts": [PART], "attempts": ATTEMPTS, "greedy": False}
MODELS = ("factory S", "sharper", "failed", "waiting")


def evaluations(owner: Any) -> None:
    """Save a suite twice and evaluate four models on it."""
    from django.db import transaction

    from flexmarl.contracts.status import RunReason, RunStatus
    from flexmarl.controlplane.accounts.queries import actor_of_user
    from flexmarl.controlplane.evaluations.actions import evaluate, save_suite
    from flexmarl.controlplane.evaluations.models import EvaluationCell, ModelEvaluation, Suite
    from flexmarl.controlplane.evaluations.queries import cells
    from tests.support.controlplane import set_state
    from tests.support.evaluated import play_cell

    actor = actor_of_user(owner)
    Suite.objects.create(id=SUITE, project_id="default", name="games", description="Hot or cold with four guesses")
    save_suite(actor, name="games", content={"parts": [PART]}, note="greedy")
    version = save_suite(actor, name="games", content=CONTENT, note="sampled")
    entries = [{"name": name, "model": {"type": "factory"}} for name in MODELS]
    made = evaluate(actor, version, name="Sizes of guessers", entries=entries)
    rows = [cell.run for cell in cells(made)]
    with transaction.atomic():
        EvaluationCell.objects.filter(evaluation=made).update(evaluation_id=EVALUATION)
        ModelEvaluation.objects.filter(pk=made.pk).update(id=EVALUATION)
    for rate, run in zip((2, 3), rows, strict=False):
        play_cell(run, {task: [member < (task + rate) % 5 for member in range(ATTEMPTS)] for task in range(TASKS)})
    text = "no episode of the evaluation finished: environment: step. Change what it names, then retry the run."
    set_state(rows[2], status=RunStatus.FAILED, reason=RunReason.EPISODES_FAILED, reason_text=text, pending_verb="")
