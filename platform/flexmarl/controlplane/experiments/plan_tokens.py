"""Plan tokens: what a plan spoke of, signed, so that a run is made as planned or not at all.

A token binds the resolved specification (its sections' digests, the name aside) and the facts of the world that a
person relied on: whether the devices fit now, and whether they ever can. That fewer devices are free but still enough
changes nothing; that they no longer fit does. One with a prediction names the stored plan, and binds what that rested
on: it no longer holds when a figure of its profile has left its range, or when the cost has another price.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson
from django.core import signing

from flexmarl.contracts.resolve import Resolved
from flexmarl.controlplane.common.problems import FieldError, PlanStale, ValidationProblem
from flexmarl.controlplane.experiments import predictions
from flexmarl.controlplane.experiments.models import StoredPlan
from flexmarl.controlplane.inventory import queries as inventory

_SALT = "flexmarl.plan"
VALID_S = 3600
"""A plan is not relied upon for longer than this many seconds."""
_FREE = {"name"}
"""Sections that a person may still change after planning."""


def devices(found: Resolved) -> dict[str, Any]:
    """Say whether the devices that a specification asks for are there."""
    resources = found.spec.resources
    own = {
        "engine": (resources.rollout_pool, resources.least_rollout_devices),
        "trainer": (resources.training_pool, found.spec.own_trainers),
    }
    if not found.spec.own_trainers:
        del own["trainer"]  # they share the devices of the engines
    return inventory.fit(own, resources.engine_devices, resources.most_rollout_devices)


def token_of(found: Resolved, fit: Mapping[str, Any], stored: StoredPlan | None = None) -> str:
    """Sign what a plan says of a specification and of the world."""
    body: dict[str, Any] = {"spec": _digests(found.document), "world": _world(fit)}
    if stored is not None:
        body |= {"plan": str(stored.id), "prices": _prices(found)}
    return signing.dumps(body, salt=_SALT, compress=True)


def check_plan(token: str, found: Resolved) -> StoredPlan | None:
    """Return the stored plan of a token, None when it predicted nothing.

    Raises PlanStale, with what changed, unless the plan still holds for a specification.
    """
    try:
        planned = signing.loads(token, salt=_SALT, max_age=VALID_S)
    except signing.SignatureExpired:
        raise _stale([("age", f"at most {VALID_S} s", "older")]) from None
    except signing.BadSignature:
        detail = "The plan token is invalid."
        hint = "Send the plan_token from POST /api/v1/runs/plan, or omit it."
        raise ValidationProblem(detail, errors=[FieldError("/plan_token", "wrong_type", detail, hint)]) from None
    now = _digests(found.document)
    changes: list[tuple[str, Any, Any]] = [
        (f"/{name}", "as planned", "another value")
        for name in sorted({*planned["spec"], *now})
        if planned["spec"].get(name) != now.get(name)
    ]
    before, after = planned["world"], _world(devices(found))
    changes += [(name, before[name], after[name]) for name in before if before[name] and not after[name]]
    stored = StoredPlan.objects.filter(pk=planned["plan"]).first() if "plan" in planned else None
    if stored is not None:
        changes += [("price", planned["prices"], _prices(found))] if planned["prices"] != _prices(found) else []
        changes += predictions.moved(stored, predictions.known(found.spec))
    if changes:
        raise _stale(changes)
    return stored


def _prices(found: Resolved) -> dict[str, float]:
    return inventory.prices([found.spec.resources.rollout_pool, found.spec.resources.training_pool])


def _stale(changes: list[tuple[str, Any, Any]]) -> PlanStale:
    listed = [{"what": what, "before": before, "after": after} for what, before, after in changes]
    names = ", ".join(str(change["what"]) for change in listed)
    return PlanStale(f"Changed since the plan: {names}. Plan again.", extra={"changes": listed})


def _digests(document: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
        for name, value in document.items()
        if name not in _FREE
    }


def _world(fit: Mapping[str, Any]) -> dict[str, bool]:
    return {"devices.fits_now": bool(fit["fits_now"]), "devices.fits_ever": bool(fit["fits_ever"])}
