"""Checks of a run's consistency: asked for, read, cancelled. What is checked is checked by `telemetry.checking`.

A check reads every row of a run, so no request waits for one: a request makes or joins one, and what the last one
found is remembered with its time.
"""

from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.models import OPEN, WorkState
from flexmarl.controlplane.common.problems import InvalidState, NotFound, PermissionDenied, RateLimited
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.models import ConsistencyCheck, Run
from flexmarl.controlplane.runs.queries import may_act

MOST_OPEN = 20
"""Checks of a project that wait or are under way."""


def consistency(run: Run) -> dict[str, Any]:
    """Return what the last whole check found, with its time, and the check that waits or is under way."""
    rows = ConsistencyCheck.objects.filter(run=run).select_related("owner", "run")
    last = rows.filter(state=WorkState.DONE).order_by("-finished_at").first()
    newest = rows.defer("result").first()
    found = (last.result if last is not None else None) or {}
    return {
        "ok": last.ok if last is not None else None,
        "checked_at": rfc3339(last.finished_at) if last is not None else None,
        "seq": found.get("seq"),
        "checks": found.get("checks", []),
        "counts": found.get("counts"),
        "check": check_row(newest) if newest is not None else None,
    }


def find_check(run: Run, reference: UUID) -> ConsistencyCheck:
    """Return a check of a run. Raises NotFound."""
    found = ConsistencyCheck.objects.filter(run=run, pk=reference).select_related("owner", "run").first()
    if found is None:
        raise NotFound("There is no such check. The newest ones of a run are kept.")
    return found


def check_row(check: ConsistencyCheck) -> dict[str, Any]:
    """Return a check as an operation: how far it is, and how it ended."""
    api = f"/api/v1/runs/{check.run_id}/consistency"
    return {
        "id": str(check.id),
        "state": check.state,
        "ok": check.ok,
        "reason": check.reason,
        "reason_text": check.reason_text,
        "progress": {"done": check.done, "total": 1000, "now": check.now_at},
        "created_by": check.owner.username if check.owner else None,
        "created_at": rfc3339(check.created_at),
        "started_at": rfc3339(check.started_at),
        "finished_at": rfc3339(check.finished_at),
        "allowed_actions": ["cancel"] if check.state in OPEN else [],
        "url": f"{api}/{check.id}",
        "result_url": api,
        "web_url": f"/runs/{check.run.key}/events",
    }


@transaction.atomic
def start(actor: Actor, run: Run) -> ConsistencyCheck:
    """Ask for a check, or join the one that is open. Raises RateLimited when too many of the project are open."""
    actor.require(Scope.RUNS_READ, run.project_id)
    Run.objects.select_for_update().only("pk").get(pk=run.pk)  # two that ask at once ask one after the other
    found = ConsistencyCheck.objects.filter(run=run, state__in=OPEN).first()
    if found is None:
        waiting = ConsistencyCheck.objects.filter(run__project_id=run.project_id, state__in=OPEN).count()
        if waiting >= MOST_OPEN:
            detail = f"{waiting} checks of {run.project_id} are queued or running. Cancel one, or try again later."
            raise RateLimited(detail, headers={"Retry-After": "30"})
        found = ConsistencyCheck.objects.create(run=run, owner_id=actor.user_id)
        record(actor, "run.check", "run", run.id, run.name, project=run.project_id, check=str(found.id))
    return find_check(run, found.id)


@transaction.atomic
def cancel(actor: Actor, run: Run, check: ConsistencyCheck) -> ConsistencyCheck:
    """End a check that waits or is under way. Raises PermissionDenied, or InvalidState when it has ended."""
    if not may_act(actor, run):
        needed = str(Scope.RUNS_ACT if run.owner_id == actor.user_id else Scope.RUNS_ACT_ANY)
        raise PermissionDenied(f"This needs the scope {needed}.", extra={"required_scopes": [needed]})
    locked = ConsistencyCheck.objects.select_for_update().get(pk=check.pk)
    if locked.state not in OPEN:
        raise InvalidState(f"The check is {locked.state} already.", state=locked.state, allowed_actions=[])
    locked.state, locked.reason_text = WorkState.CANCELLED, f"cancelled by {actor.name}"
    locked.finished_at, locked.lease_until, locked.now_at = timezone.now(), None, ""
    locked.version += 1
    locked.save()
    record(actor, "run.check_cancel", "run", run.id, run.name, project=run.project_id, check=str(locked.id))
    return find_check(run, locked.id)
