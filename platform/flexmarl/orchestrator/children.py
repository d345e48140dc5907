"""What a lost or released child takes with it."""

from flexmarl.contracts.events import DeviceUse
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state import LeaseState
from flexmarl.orchestrator.training import unbind


def forget_child(ctx: Context, lease: LeaseState) -> None:
    """Count on a lease's child no more: what it was asked for is void, and a trainer's policies are bound anew."""
    stood_by = ctx.state.stands_by(lease)
    lease.incarnation = ""
    lease.holds.clear()
    lease.kept.clear()
    lease.serves.clear()
    lease.leaving.clear()
    ctx.withdraw_lease(lease.lease_id)
    if lease.use is DeviceUse.TRAINER and not stood_by:
        for name in ctx.state.policies:
            unbind(ctx, name)
