"""The orchestrator on a virtual cluster: what a run would take, without devices and without waiting.

The core, the routers and the rules of a specification are the ones of real runs; engines, trainers, environments,
transfers and our own delays are models, named in `scenario`. Equal scenarios give equal results.
"""

from flexmarl.simulator.report import Report
from flexmarl.simulator.runs import SimulationError, simulate
from flexmarl.simulator.scenario import Machine, Scenario, Workload

__all__ = ["Machine", "Report", "Scenario", "SimulationError", "Workload", "simulate"]
