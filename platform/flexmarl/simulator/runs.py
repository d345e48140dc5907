"""One simulation from its start until its steps are done."""

from collections.abc import Callable

from flexmarl.simulator.cluster.cluster import Cluster
from flexmarl.simulator.cluster.fault_injection import FaultInjector, devices_of
from flexmarl.simulator.cluster.pool import SimulatedPool, Tenancy
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.reporting.checks import Checks, SchedulingFault
from flexmarl.simulator.reporting.report import SimulationReport, report
from flexmarl.simulator.scenarios.recorded import RecordedWorkload
from flexmarl.simulator.scenarios.scenario import Scenario

STILL_S = 3 * 86_400.0
"""A run that makes no step for so long waits for what never comes, whatever else happens meanwhile."""


class SimulationError(RuntimeError):
    """The simulated run came to no end: it failed, or nothing was left that could happen."""


def simulate(scenario: Scenario) -> SimulationReport:
    """Play a scenario. Raises SimulationError when the run does not make its steps, with the run's own reason."""
    return _play(scenario, lambda cluster: None)


def examine(scenario: Scenario) -> tuple[SimulationReport, list[SchedulingFault]]:
    """Play a scenario and look for faults of scheduling meanwhile. Raises SimulationError as `simulate` does."""
    found: list[Checks] = []
    report = _play(scenario, lambda cluster: found.append(Checks.over(cluster, scenario.machine)))
    return report, found[0].findings()


def _play(scenario: Scenario, watch: Callable[[Cluster], None]) -> SimulationReport:
    if scenario.spec.sampling.copies:
        raise SimulationError("Branching members are not simulated; set sampling.branch_controller: none.")
    if scenario.granularity == "episode" and isinstance(scenario.workload, RecordedWorkload):
        raise SimulationError("A recorded load needs granularity: turn.")
    scenario = long_enough(scenario)
    _check_granularity(scenario)
    cluster, wanted = alone(scenario), scenario.warm_up + scenario.steps
    driver, done = cluster.driver, cluster.log.stepped
    watch(cluster)
    while len(done) < wanted:
        stands = cluster.clock.now - (done[-1] if done else 0.0) > STILL_S
        if stands or not cluster.clock.play():
            state = driver.core.state
            raise SimulationError(
                f"After {cluster.clock.now:.0f} s no events are left; {len(done)} of {wanted} steps are done "
                f"and the run is {state.lifecycle.status}: {state.lifecycle.reason_text}"
            )
        if driver.ended and len(done) < wanted:
            raise SimulationError(f"The run ended after {len(done)} of {wanted} steps: {driver.ended}")
    return report(scenario, cluster)


def alone(scenario: Scenario) -> Cluster:
    """Start a run that has its devices for itself."""
    clock = Clock()
    cluster = Cluster(scenario, clock, SimulatedPool(clock, devices_of(scenario)), Tenancy())
    FaultInjector(scenario, cluster).begin()
    cluster.start()
    return cluster


def long_enough(scenario: Scenario) -> Scenario:
    """Let the run go on beyond the steps that are looked at, so that none of these is its last."""
    return shortened(scenario, further=2)


def shortened(scenario: Scenario, further: int = 0) -> Scenario:
    """Let the run end after its steps and some further ones, without any other budget."""
    spec, steps = scenario.spec, scenario.warm_up + scenario.steps + further
    budget = spec.budget.model_copy(update={"train_steps": steps, "seconds": None, "target": None})
    played = {} if scenario.evaluates else {"every_steps": steps + 1, "tasks": 1}
    evaluation = spec.evaluation.model_copy(update=played)
    return scenario.model_copy(update={"spec": spec.model_copy(update={"budget": budget, "evaluation": evaluation})})


def _check_granularity(scenario: Scenario) -> None:
    """Refuse what episodes that are played as a whole cannot show."""
    spec = scenario.spec
    if scenario.granularity == "turn":
        return
    if scenario.machine.kinds:
        raise SimulationError("machine.kinds is not shown by granularity: episode; set granularity: turn.")
    if scenario.workload.shares(spec.agents):
        raise SimulationError(
            "workload: again and alike depend on who answered before, which granularity: episode does not show; set 0."
        )
    engines = spec.resources.most_rollout_devices + scenario.faults.spares
    if any(slow.device < engines for slow in scenario.faults.slow):
        raise SimulationError(
            f"faults.slow: engines that differ are not shown by granularity: episode; name devices of trainers, from "
            f"{engines}, or set granularity: turn."
        )
    if scenario.machine.engine.mixed != 1.0:
        raise SimulationError(
            "machine.engine.mixed slows single engines down, which granularity: episode does not show; set 1."
        )
    if scenario.machine.engine.cache == "grown":
        raise SimulationError(
            "machine.engine.cache: grown sends single turns back, which granularity: episode does not show; set "
            "granularity: turn, or cache: reserved."
        )
    if spec.mechanisms.redundancy.fate == "pause":
        raise SimulationError(
            "redundancy.surplus: pause takes single replies back, which granularity: episode does not show; set "
            "granularity: turn, or surplus: continue."
        )
    for name in spec.trainable_policies():
        rule = spec.lag_policy_of(name).in_flight
        if rule not in ("finish", "discard"):
            raise SimulationError(
                f"lag_policy.in_flight: {rule} of {name} changes weights within a turn, which granularity: episode "
                "does not show; set granularity: turn, or in_flight: finish or discard."
            )
