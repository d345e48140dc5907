"""Sweeps are advanced here: ended runs are settled, weak ones stopped, new ones asked for and created.

Invariants. Who advances a sweep holds the lock of its row for one transaction, so there is one at a time, and a process
that dies leaves none. A trial, its run and its start are one transaction: a process killed between asking and creating
leaves neither, and the next one asks for the same values. A run carries the sweep and its number as its external id,
which a project has once. Sweeps act with the rights that their owner has now.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import structlog
from django.db import connection, transaction
from django.db.models import F, Q
from django.db.utils import Error as DatabaseError
from django.utils import timezone

from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.controlplane.accounts.queries import current_actor
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import PermissionDenied, ProblemError
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments.plans import Draft
from flexmarl.controlplane.runs import actions as runs
from flexmarl.controlplane.runs.choices import allowed_now
from flexmarl.controlplane.runs.marks import Marks
from flexmarl.controlplane.sweeps import judging
from flexmarl.controlplane.sweeps.asking import TriedValues, ask
from flexmarl.controlplane.sweeps.judging import Curve
from flexmarl.controlplane.sweeps.models import Sweep, SweepState, SweepTrial, TrialState
from flexmarl.controlplane.sweeps.plan import SearchPlan, overrides
from flexmarl.store.reads.device_use import device_hours
from flexmarl.store.telemetry import metrics
from flexmarl.store.telemetry.metrics import SeriesWindow

log = structlog.get_logger(__name__)
LOOK_S = 1.0
MOST_FAILURES = 3
"""Trials that may fail one after the other before the sweep gives up."""
READ_POINTS = 5000
_STATS = ("mean", "share", "last", "")


@dataclass(slots=True)
class _Sight:
    """A sweep with its trials and what their runs have come to."""

    sweep: Sweep
    plan: SearchPlan
    trials: list[SweepTrial]
    curves: dict[int, Curve]
    """Trial number -> curve of the metric."""

    def open(self) -> list[SweepTrial]:
        return [one for one in self.trials if one.state == TrialState.RUNNING]


def advance(sweep_id: UUID) -> bool:
    """Take one step of a sweep; whether a trial was created. A sweep that another process has is left alone."""
    with transaction.atomic():
        sweep = Sweep.objects.select_for_update(skip_locked=True, of=("self",)).filter(pk=sweep_id).first()
        if sweep is None:
            return False
        sight = _seen(sweep)
        _settle(sight)
        if sweep.state != SweepState.RUNNING:
            return False
        actor = current_actor(sweep.owner_id)
        _stop_weak(sight, actor)
        spent = device_hours(store_connection(), [one.run.no for one in sight.trials if one.run is not None])
        if sight.plan.device_hours is not None and spent >= sight.plan.device_hours:
            _stop_all(sight, actor, f"The sweep has used its {sight.plan.device_hours:g} device-hours.")
            _end(sweep, SweepState.DONE, "budget", f"Its runs held devices for {spent:.2f} hours.")
            return False
        return _next(sight, actor)


def advance_all() -> None:
    """Take every step that open sweeps allow now."""
    wanted = Q(state=SweepState.RUNNING) | Q(trials__state=TrialState.RUNNING)
    for sweep_id in Sweep.objects.filter(wanted).order_by("id").distinct().values_list("pk", flat=True):
        while advance(sweep_id):
            pass


def _seen(sweep: Sweep) -> _Sight:
    trials = list(SweepTrial.objects.filter(sweep=sweep).select_related("run__state").order_by("number"))
    plan = SearchPlan.model_validate(sweep.plan)
    judged = any(one.state == TrialState.RUNNING for one in trials) and (plan.early_stop or plan.method == "halving")
    wanted = [one for one in trials if judged or one.state == TrialState.RUNNING]
    return _Sight(sweep, plan, trials, {one.number: _curve(one, plan.metric) for one in wanted})


def _curve(trial: SweepTrial, metric: str) -> Curve:
    if trial.run is None:
        return []
    window = SeriesWindow(max_points=READ_POINTS)
    found = metrics.series(store_connection(), trial.run.no, [metric], agent="", window=window)
    best = min(found, key=lambda one: _STATS.index(one.stat) if one.stat in _STATS else len(_STATS), default=None)
    return [] if best is None else list(zip(best.x, best.y, strict=True))


def _settle(sight: _Sight) -> None:
    """Write what open trials came to, and end those whose runs have ended."""
    for one in sight.open():
        found = judging.objective(sight.curves[one.number])
        state, why = one.state, one.why
        if one.run is None:
            state, why = TrialState.FAILED, "Its run was deleted."
        elif (status := RunStatus(one.run.state.status)) in TERMINAL:
            good = status is RunStatus.COMPLETED and found is not None
            state = TrialState.STOPPED if why and good else TrialState.DONE if good else TrialState.FAILED
            said = one.run.state.reason_text or f"The run is {status} and has no values of {sight.plan.metric}."
            why = why or ("" if good else said)
        if (state, why, found) != (one.state, one.why, one.objective):
            one.state, one.why, one.objective = state, why, found
            one.save(update_fields=["state", "why", "objective"])


def _stop_weak(sight: _Sight, actor: Actor) -> None:
    for one in sight.open():
        why = "" if one.why else _weak(sight, one)
        if why:
            _stop(one, actor, why)


def _weak(sight: _Sight, one: SweepTrial) -> str:
    curve, plan = sight.curves[one.number], sight.plan
    others = [sight.curves.get(other.number, []) for other in sight.trials if other is not one]
    if plan.method != "halving":
        return judging.below_median(plan, curve, others) if plan.early_stop else ""
    while curve and curve[-1][0] >= (step := judging.next_rung(plan, one.rungs)):
        one.rungs += 1
        one.save(update_fields=["rungs"])
        if why := judging.weak_at_rung(plan, curve, others, step):
            return why
    return ""


def _stop_all(sight: _Sight, actor: Actor, why: str) -> None:
    for one in sight.open():
        if not one.why:
            _stop(one, actor, why)


def _stop(one: SweepTrial, actor: Actor, why: str) -> None:
    """Ask a run to end; one that cannot be stopped now is looked at again."""
    if one.run is None:
        return
    allowed = allowed_now(RunStatus(one.run.state.status), one.run.state.pending_verb)
    verb = next((verb for verb in (Verb.STOP, Verb.KILL) if verb in allowed), None)
    if verb is None:
        return
    try:
        runs.act(actor, one.run, verb, why[:300])
    except ProblemError as refused:
        log.warning("sweep_cannot_stop_run", run=one.run.key, detail=refused.detail)
        return
    one.why = why
    one.save(update_fields=["why"])


def _next(sight: _Sight, actor: Actor) -> bool:
    """Create the next trial, or end the sweep."""
    sweep, plan, waiting = sight.sweep, sight.plan, sight.open()
    last = [one for one in sight.trials if one.state != TrialState.RUNNING][-MOST_FAILURES:]
    if len(last) == MOST_FAILURES and all(one.state == TrialState.FAILED for one in last):
        said = f"{MOST_FAILURES} trials in a row failed, the last one: {last[-1].why}"
        _end(sweep, SweepState.FAILED, "trials_fail", said)
        return False
    told = [TriedValues(one.values, one.objective, one.state == TrialState.RUNNING) for one in sight.trials]
    whole = len(sight.trials) >= plan.trials
    if (whole or ask_is_over(plan, told)) and not waiting:
        _end(sweep, SweepState.DONE, "complete", f"All {len(sight.trials)} trials have ended.")
    if whole or len(waiting) >= plan.parallel:
        return False
    values = ask(plan, told)
    return values is not None and _create(sweep, len(sight.trials) + 1, values, actor)


def ask_is_over(plan: SearchPlan, told: Sequence[TriedValues]) -> bool:
    """Say whether a grid is complete."""
    return plan.method == "grid" and ask(plan, told) is None


def _create(sweep: Sweep, number: int, values: dict[str, Any], actor: Actor) -> bool:
    trial = SweepTrial.objects.create(sweep=sweep, number=number, values=values)
    draft = Draft(
        name=f"{sweep.name[:56]} {number}", preset=sweep.preset, template=sweep.template, spec=sweep.spec,
        overrides=overrides(sweep.spec, values),
    )  # fmt: skip
    try:
        trial.run, _ = runs.create_once(
            actor, draft, marks=Marks(tags=("sweep",), external_id=f"sweep/{sweep.pk}/{number}"),
            project=sweep.project_id, experiment=sweep.experiment.name if sweep.experiment else "", start=True,
        )  # fmt: skip
    except PermissionDenied as refused:
        trial.delete()
        _end(sweep, SweepState.FAILED, "no_rights", f"Its owner may no longer start runs. {refused.detail}")
        return False
    except ProblemError as refused:
        trial.state, trial.why = TrialState.FAILED, refused.detail
    trial.save()
    return True


def _end(sweep: Sweep, state: SweepState, reason: str, text: str) -> None:
    sweep.state, sweep.reason, sweep.reason_text = state, reason, text
    Sweep.objects.filter(pk=sweep.pk).update(
        state=state, reason=reason, reason_text=text, version=F("version") + 1, updated_at=timezone.now()
    )


class SweepingThread(threading.Thread):
    """Advances sweeps until told to end. A database that goes away is waited for."""

    def __init__(self) -> None:
        super().__init__(name="sweeps", daemon=True)
        self._stopping = threading.Event()

    def run(self) -> None:
        """Look every `LOOK_S`."""
        while not self._stopping.wait(LOOK_S):
            try:
                advance_all()
            except (DatabaseError, psycopg.OperationalError) as error:
                log.warning("database_lost", error=str(error))
                connection.close()
            except Exception:  # the thread outlives any fault: other sweeps would wait for ever
                log.exception("sweeping_failed")
        connection.close()

    def stop(self) -> None:
        """End after the step that is under way."""
        self._stopping.set()
        self.join(5)
