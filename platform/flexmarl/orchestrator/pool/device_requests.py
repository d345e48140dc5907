"""Which pools a run takes its devices from, and which of its requests a grant answers.

Invariant: the specification never changes; a move to other pools is a fact of the log and lives in the state, so a
replay asks for the same devices.
"""

from flexmarl.contracts.commands import ReleaseLease
from flexmarl.contracts.decisions import NoteLevel
from flexmarl.contracts.events import DevicesGranted, PoolsChanged
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.context import Context

GANG = "devices"
"""Key of the request for the devices that a run lacks."""
JOIN = "join"
"""Key of the request for an engine above the run's minimum."""
REPLACE = "replace:"
"""Keys of requests for one device each, in place of a recalled lease."""

_MOVABLE = frozenset({RunStatus.DRAFT, RunStatus.QUEUED})


def rollout_pool(ctx: Context) -> str:
    """Name the pool of the engines."""
    return ctx.state.fleet.pools.rollout or ctx.plan.spec.resources.rollout_pool


def training_pool(ctx: Context) -> str:
    """Name the pool of the trainers."""
    return ctx.state.fleet.pools.training or ctx.plan.spec.resources.training_pool


def replaced_by(key: str) -> int:
    """Return the lease that a request is to replace, 0 when it is none of that kind."""
    return int(key.removeprefix(REPLACE)) if key.startswith(REPLACE) else 0


def request_of(ctx: Context, event: DevicesGranted) -> str | None:
    """Return the key of the request that a grant answers. One that nobody waits for any more is given back."""
    waiting = ctx.state.outstanding
    key = next((key for key, command in waiting.items() if command.no == event.command_no), None)
    if key is None and not any(granted.lease_id in ctx.state.fleet.leases for granted in event.leases):
        for granted in event.leases:
            ctx.emit(ReleaseLease(lease_id=granted.lease_id))
    return key


def on_pools_changed(ctx: Context, event: PoolsChanged) -> None:
    """Ask for devices elsewhere from now on; a run that has devices keeps its pools."""
    state = ctx.state
    if state.lifecycle.status not in _MOVABLE or state.fleet.leases:
        text = f"the move to {event.rollout_pool} came too late: the run is {state.lifecycle.status}"
        ctx.note(text, NoteLevel.WARNING, actor=event.actor, target="run")
        return
    state.fleet.pools.rollout, state.fleet.pools.training = event.rollout_pool, event.training_pool
    ctx.withdraw(GANG)
    where = event.rollout_pool
    if event.training_pool != where:
        where = f"{where} and {event.training_pool}"
    ctx.note(f"the run requests devices in {where}", actor=event.actor, target="run")
