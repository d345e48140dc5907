"""What is known of the weights that an engine holds."""

from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.fleet import LeaseState


def dismiss(ctx: Context, lease: LeaseState, name: str) -> None:
    """Count on an engine for a policy no more. It may hold what nobody has heard of: it is always asked to forget."""
    lease.weights.held.pop(name, None)
    lease.weights.previous.pop(name, None)
    lease.weights.leaving.append(name)
    ctx.withdraw(f"load:{lease.lease_id}:{name}")
    ctx.state.failures.pop(f"load:{lease.lease_id}:{name}", None)


def holds(lease: LeaseState, policy: str, version: int | None) -> bool:
    """Tell whether an engine takes requests for a version."""
    return version is not None and version in (lease.weights.held.get(policy), lease.weights.previous.get(policy))
