"""The orchestrator on a virtual cluster: what a run would take, without devices and without waiting.

The core, the routers and the rules of a specification are the ones of real runs; engines, trainers, environments,
transfers and our own delays are models, named in `scenario`. Equal scenarios give equal results.
"""

from flexmarl.simulator.reporting.report import SimulationReport
from flexmarl.simulator.runs import SimulationError, simulate
from flexmarl.simulator.scenarios.scenario import Machine, Scenario, Workload
from flexmarl.simulator.sharing import PoolReport, SharedPools, simulate_pool

__all__ = [
    "Machine",
    "PoolReport",
    "Scenario",
    "SharedPools",
    "SimulationError",
    "SimulationReport",
    "Workload",
    "simulate",
    "simulate_pool",
]  # fmt: skip
