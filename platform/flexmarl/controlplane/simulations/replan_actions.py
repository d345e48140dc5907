"""What is proposed to a running run, as others read it; applied and dismissed by people, or applied by itself.

Applying makes a run that goes on from the newest checkpoint with the proposed setting and the rest of the budget,
starts it, and stops the old one: one transaction. What was tried goes with it, so that the new run is not sent back.
"""

from dataclasses import asdict
from typing import Any

from django.db import transaction
from django.utils import timezone

from flexmarl.algorithms.replanning import RunAsMeasured, applied, dismissed
from flexmarl.contracts.events import Verb
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.queries import current_actor
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import InvalidState, PermissionDenied, ProblemError
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.experiments.plans import Draft, overlay
from flexmarl.controlplane.runs import actions, forks, queries
from flexmarl.controlplane.runs.forks import ForkSource
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.simulations.choices import ReplanReason, ReplanState
from flexmarl.controlplane.simulations.models import RunReplan
from flexmarl.controlplane.simulations.replan_words import REASONS
from flexmarl.controlplane.simulations.replanning import OPTIONS, history_of, newest_checkpoint, past


def replan_row(run: Run) -> dict[str, Any]:
    """Return how a run's rates compare with its plan, and what it is proposed, as the API tells it."""
    row = _kept(run)
    state, reason, text = _state(run, row)
    return {
        "state": state,
        "reason": reason,
        "reason_text": text,
        "version": row.version if row else 0,
        "assumed_from": row.assumed["source"] if row else "plan",
        "rates": row.rates if row else [],
        "proposal": row.proposal if row else None,
        "past": row.past if row else [],
        "into": row.into.key if row and row.into else None,
        "looked_at": rfc3339(row.looked_at) if row and row.looked_at else None,
        "next_look_at": rfc3339(row.next_look_at) if row and state in ("watching", "proposed") else None,
        "dead_band": OPTIONS.band,
        "least_gain": OPTIONS.worth,
        "allowed_actions": ["apply", "dismiss"] if state == ReplanState.PROPOSED else [],
    }


def _kept(run: Run) -> RunReplan | None:
    """Return what is kept of a run; nothing is of one that neither has a plan nor goes on from another run."""
    if run.plan_id is None and run.parent_id is None:
        return None
    return RunReplan.objects.select_related("into").filter(run=run).first()


def _state(run: Run, row: RunReplan | None) -> tuple[str, str, str]:
    """Return state, reason and the reason in words, as of now: what is kept is as of the last look."""
    if row is None and run.plan_id is None:
        return ReplanState.OFF.value, ReplanReason.NO_PLAN.value, REASONS[ReplanReason.NO_PLAN]
    if row is not None and row.state in (ReplanState.APPLIED, ReplanState.OFF):
        return row.state, row.reason, row.reason_text
    if run.state.status != RunStatus.RUNNING:
        return ReplanState.OFF.value, ReplanReason.NOT_RUNNING.value, REASONS[ReplanReason.NOT_RUNNING]
    if row is None:
        return ReplanState.WATCHING.value, ReplanReason.TOO_FEW.value, REASONS[ReplanReason.TOO_FEW]
    return row.state, row.reason, row.reason_text or REASONS[ReplanReason(row.reason)]


@transaction.atomic
def apply(actor: Actor, run: Run, check: Precondition = any_version) -> Run:
    """Go on with the proposed setting in another run, and stop this one. Raises InvalidState without a proposal."""
    row = _locked(actor, run, check)
    spec, proposal = ExperimentSpec.model_validate(run.spec), row.proposal or {}
    kept = newest_checkpoint(run)
    if kept is None:
        detail = f"{run.key} has no complete checkpoint any more that a run could go on from. Wait for the next one."
        raise InvalidState(detail, state=row.state, allowed_actions=["dismiss"])
    left = max(1, spec.budget.train_steps - kept.step)
    states = all(kept.parts[name]["state"] for name in spec.trainable_policies() if name in kept.parts)
    draft = Draft(overrides=overlay(proposal["patch"], {"budget": {"train_steps": left}}))
    made = forks.fork(
        actor, run, draft, ForkSource(kept.step, "training_state" if states else "weights"),
        experiment=run.experiment.name if run.experiment else "", start=True,
    )  # fmt: skip
    actions.act(actor, run, Verb.STOP, f"Goes on as {made.key} with other devices.")
    now = timezone.now()
    measured = _measured(proposal)
    RunReplan.objects.create(
        run=made,
        next_look_at=now,
        assumed={**row.assumed, "step_s": proposal["then_step_s"]},
        history=asdict(applied(history_of(row), proposal["setting"], measured, now.timestamp())),
    )
    row.into = made
    row.past = [{**proposal, "became": "applied", "until": rfc3339(now)}, *row.past]
    _save(row, run, ReplanState.APPLIED, ReplanReason.APPLIED)
    record(actor, "run.replan", "run", run.id, run.key, project=run.project_id, into=made.key, after=proposal["patch"])
    return made


def apply_for_owner(run: Run) -> Run | None:
    """Apply what is proposed to a run that asks for it (`resources.replan: apply`), as its owner.

    Where that is refused it stays proposed, and says why; it is tried again with the next look.
    """
    try:
        return apply(current_actor(run.owner_id), run)
    except ProblemError as refused:
        with transaction.atomic():
            row = RunReplan.objects.select_for_update(of=("self",)).filter(run=run, state=ReplanState.PROPOSED).first()
            if row is not None and row.proposal and row.proposal.get("refused") != str(refused):
                row.proposal["refused"] = str(refused)
                _save(row, run, ReplanState.PROPOSED, ReplanReason.PROPOSED)
        return None


@transaction.atomic
def dismiss(actor: Actor, run: Run, check: Precondition = any_version) -> dict[str, Any]:
    """Set a proposal aside until steps take a quarter longer or shorter. Raises InvalidState without one."""
    row = _locked(actor, run, check)
    proposal, now = row.proposal or {}, timezone.now()
    row.history = asdict(dismissed(history_of(row), proposal["setting"], _measured(proposal), now.timestamp()))
    past(row, "dismissed", now)
    _save(row, run, ReplanState.WATCHING, ReplanReason.DISMISSED)
    setting = proposal["setting"]
    record(actor, "run.replan_dismiss", "run", run.id, run.key, project=run.project_id, setting=setting)
    return replan_row(run)


def _locked(actor: Actor, run: Run, check: Precondition) -> RunReplan:
    """Return the row of a run that is proposed something. Raises PermissionDenied, PreconditionFailed, InvalidState."""
    if not queries.may_act(actor, run):
        raise PermissionDenied("Only the owner of a run and operators may decide on its devices.")
    row = RunReplan.objects.select_for_update(of=("self",)).filter(run=run).first()
    check(row.version if row else 0)
    if row is None or row.state != ReplanState.PROPOSED:
        told = replan_row(run)
        detail = f"{run.key} is proposed nothing now: {told['reason_text']}"
        raise InvalidState(detail, state=told["state"], allowed_actions=told["allowed_actions"])
    return row


def _measured(proposal: dict[str, Any]) -> RunAsMeasured:
    steps, left = proposal["measured_steps"], proposal["steps_left"]
    return RunAsMeasured(proposal["instead_of"], steps, proposal["now_step_s"], left)


def _save(row: RunReplan, run: Run, state: ReplanState, reason: ReplanReason) -> None:
    row.reason_text = row.reason_text if (row.state, row.reason) == (state, reason) else REASONS[reason]
    row.state, row.reason = state, reason
    row.version += 1
    row.save()
    live.announce_on_commit(live.run_topic(run.id), run.state.seq)
