"""What a run's devices have cost: each device hour at the price that its pool had then."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.reads.device_use import PoolUse, pool_use

PARTS = 60
"""Points of the course over time."""
UNPRICED_H = 1e-6
"""Device hours without a price that are none."""


def cost_of(run: Run, parts: int = PARTS) -> dict[str, Any]:
    """Return device hours and cost so far, by pool and over time.

    `cost` is of the priced hours alone; None where there are none. `unpriced_hours` are those without a price.
    """
    found = pool_use(store_connection(), run.no, parts)
    times = sorted({one.at for one in found})
    last = [one for one in found if one.at == times[-1]] if times else []
    return {
        **_summed(last),
        "pools": [{"pool": one.pool, **_summed([one])} for one in last],
        "over_time": [
            {"at": rfc3339(datetime.fromtimestamp(at, UTC)), **_summed([one for one in found if one.at == at])}
            for at in times
        ],
    }


def _summed(parts: Sequence[PoolUse]) -> dict[str, Any]:
    hours, priced = sum(one.hours for one in parts), sum(one.priced_hours for one in parts)
    return {
        "device_hours": round(hours, 6),
        "unpriced_hours": round(hours - priced, 6) if hours - priced > UNPRICED_H else 0.0,
        "cost": round(sum(one.cost for one in parts), 6) if priced > UNPRICED_H else None,
    }
