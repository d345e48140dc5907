"""Which policies engines serve, where there is a choice: pure, and used by the core, live and simulated."""

from typing import Any

from flexmarl.algorithms.movers.base import (
    Handover,
    Move,
    Mover,
    PolicyDemand,
    Serving,
    Snapshot,
    checked,
    checked_handovers,
)
from flexmarl.algorithms.movers.demand import DemandMover
from flexmarl.algorithms.movers.repack import RepackMover
from flexmarl.algorithms.movers.waiting import for_waiting
from flexmarl.algorithms.registry import Registry
from flexmarl.contracts.specification.movers import MOVER, StaticMoverOptions


class StaticMover(Mover[StaticMoverOptions]):
    """Nothing moves, but for policies without an engine."""

    Options = StaticMoverOptions


MOVERS: Registry[Mover[Any]] = Registry(MOVER, (StaticMover, DemandMover, RepackMover))

__all__ = [
    "MOVERS",
    "Handover",
    "Move",
    "Mover",
    "PolicyDemand",
    "Serving",
    "Snapshot",
    "checked",
    "checked_handovers",
    "for_waiting",
]
