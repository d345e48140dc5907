"""Simulations for looking at: one that is done, with its figures, and one that waits."""

from typing import Any
from uuid import UUID

SIMULATIONS = (UUID("01900000-0000-7000-8000-000000000001"), UUID("01900000-0000-7000-8000-000000000002"))
"""The one that is done, the one that waits."""


def simulations(owner: Any) -> None:
    """Ask for both and play the first."""
    from flexmarl.controlplane.accounts.queries import actor_of_user
    from flexmarl.controlplane.simulations import executing
    from flexmarl.controlplane.simulations.actions import create_comparison
    from flexmarl.controlplane.simulations.models import Simulation
    from flexmarl.controlplane.simulations.requests import Comparison

    changes = {"spec.batch.tasks_per_step": 4, "spec.batch.episodes_per_task": 2, "spec.mechanisms.ordered": True}
    for key, seeds in zip(SIMULATIONS, (2, 1), strict=True):
        wish = Comparison(
            workload="hub", presets=("flexmarl", "sync", "bounded_async"), steps=2, seeds=seeds, changes=changes
        )
        made = create_comparison(actor_of_user(owner), wish, leave_out=True)
        Simulation.objects.filter(pk=made.pk).update(id=key)
        if key == SIMULATIONS[0]:
            row = executing.take()
            assert row is not None
            executing.play(row, executing.StopSignal())
