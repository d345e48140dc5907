"""Changes of nodes and devices: permission, write under the version that was read, audit with before and after, hint.

Every one takes a precondition, which is called with the current version under the row's lock.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition
from flexmarl.controlplane.common.problems import FieldError, InvalidState, NotFound, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.inventory.models import Pool
from flexmarl.store.control import cordons
from flexmarl.store.control.cordons import CordonRow, DrainMode, Kind

MAX_NOTE = 300


@dataclass(frozen=True, slots=True)
class DrainOrder:
    """How a node or device is to be emptied."""

    mode: DrainMode
    deadline: datetime | None = None
    """Of mode stop: runs that are left then are killed."""

    def check(self, now: datetime) -> None:
        """Raise ValidationProblem when mode and deadline do not fit."""
        if self.mode is DrainMode.STOP and self.deadline is None:
            raise _wrong("deadline", "required", "Mode stop needs a deadline.", "Send a future RFC 3339 time.")
        if self.mode is not DrainMode.STOP and self.deadline is not None:
            raise _wrong("deadline", "not_allowed", f"A drain with mode {self.mode} has no deadline.", "Omit it.")
        if self.deadline is not None and self.deadline <= now:
            raise _wrong("deadline", "out_of_range", "The deadline has passed.", "Send a future RFC 3339 time.")


@transaction.atomic
def cordon(actor: Actor, kind: Kind, key: str, precondition: Precondition, note: str | None = None) -> None:
    """Keep new leases away; what runs goes on. A drain under way ends."""
    before = _locked(actor, kind, key, precondition)
    cordons.cordon(store_connection(), kind, key)
    _note(kind, key, note)
    _written(actor, "cordon", kind, key, before)


@transaction.atomic
def enable(actor: Actor, kind: Kind, key: str, precondition: Precondition, note: str | None = None) -> None:
    """Let new leases on again. A cordon or drain ends; its note goes with it unless another is given."""
    before = _locked(actor, kind, key, precondition)
    cordons.enable(store_connection(), kind, key)
    _note(kind, key, "" if note is None else note)
    _written(actor, "enable", kind, key, before)


@transaction.atomic
def drain(
    actor: Actor, kind: Kind, key: str, precondition: Precondition, order: DrainOrder, note: str | None = None
) -> None:
    """Keep new leases away and empty what is held, in the way the order says."""
    before = _locked(actor, kind, key, precondition)
    order.check(timezone.now())
    deadline = None if order.deadline is None else order.deadline.timestamp()
    cordons.drain(store_connection(), kind, key, order.mode, deadline=deadline, by=actor.name)
    _note(kind, key, note)
    _written(actor, "drain", kind, key, before)


@transaction.atomic
def set_note(actor: Actor, kind: Kind, key: str, precondition: Precondition, note: str) -> None:
    """Say something about a node or device to whoever looks at it."""
    before = _locked(actor, kind, key, precondition)
    cordons.set_note(store_connection(), kind, key, note)
    _written(actor, "note", kind, key, before)


@transaction.atomic
def move_device(actor: Actor, device_id: str, precondition: Precondition, pool: str) -> None:
    """Put a device into a pool that exists. A lease it holds goes on."""
    before = _locked(actor, "device", device_id, precondition, lost_too=True)
    if not Pool.objects.filter(name=pool).exists():
        raise NotFound(f"There is no pool {pool}.")
    cordons.move_device(store_connection(), device_id, pool)
    _written(actor, "move", "device", device_id, before)


def _locked(actor: Actor, kind: Kind, key: str, precondition: Precondition, *, lost_too: bool = False) -> CordonRow:
    actor.require(Scope.CLUSTER_ADMIN)
    found = cordons.ruling(store_connection(), kind, key)
    if found is None:
        raise NotFound(f"There is no {kind} {key}.")
    precondition(found.ruled)
    if found.state == "lost" and not lost_too:
        text = f"{key} is lost: its node no longer reports it."
        raise InvalidState(text, state="lost", allowed_actions=["move"])
    return found


def _note(kind: Kind, key: str, note: str | None) -> None:
    if note is not None:
        cordons.set_note(store_connection(), kind, key, note)


def _written(actor: Actor, action: str, kind: Kind, key: str, before: CordonRow) -> None:
    after = cordons.ruling(store_connection(), kind, key)
    assert after is not None
    record(actor, f"{kind}.{action}", kind, key, key, before=_facts(before), after=_facts(after))
    live.announce_on_commit(live.CLUSTER, 0)


def _facts(ruling: CordonRow) -> dict[str, Any]:
    """What the change log compares."""
    deadline = ruling.drain_deadline
    return {
        "state": ruling.state,
        "note": ruling.note,
        "drain_mode": ruling.drain_mode,
        "drain_deadline": None if deadline is None else rfc3339(datetime.fromtimestamp(deadline, UTC)),
        "pool": ruling.pool,
    }


def _wrong(member: str, code: str, detail: str, hint: str) -> ValidationProblem:
    return ValidationProblem(detail, errors=[FieldError(f"/{member}", code, detail, hint)])
