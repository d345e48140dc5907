"""What a lost or released child takes with it: of a trainer, what it holds and what it suspended."""

from flexmarl.contracts.events import DeviceUse
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.fleet import LeaseState
from flexmarl.orchestrator.training.trainers import unbind


def forget_child(ctx: Context, lease: LeaseState) -> None:
    """Count on a lease's child no more: what it was asked for is void, and a trainer's policies are bound anew."""
    lease.child.incarnation = ""
    lease.sharing.awaits_successor = lease.sharing.awaits_successor or not lease.sharing.asleep
    lease.sharing.asleep = False
    lease.weights.held.clear()
    lease.weights.previous.clear()
    lease.weights.assigned.clear()
    lease.weights.leaving.clear()
    ctx.withdraw_lease(lease.lease_id)
    if lease.use is DeviceUse.TRAINER:
        for name, policy in ctx.state.policies.items():
            placement = policy.placement
            if lease.lease_id in placement.gang or (placement.ticket and placement.lease_id == lease.lease_id):
                unbind(ctx, name)
                placement.gang = []
