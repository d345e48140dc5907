"""One simulation from its start until its steps are done."""

from flexmarl.simulator.cluster import Cluster
from flexmarl.simulator.report import Report, report
from flexmarl.simulator.scenario import Scenario


class SimulationError(RuntimeError):
    """The simulated run came to no end: it failed, or nothing was left that could happen."""


def simulate(scenario: Scenario) -> Report:
    """Play a scenario. Raises SimulationError when the run does not make its steps, with the run's own reason."""
    if scenario.spec.sampling.branches:
        raise SimulationError("Members that branch are not simulated; set sampling.branch_controller: none.")
    scenario = _long_enough(scenario)
    cluster, wanted = Cluster(scenario), scenario.warm_up + scenario.steps
    driver, done = cluster.driver, cluster.log.stepped
    cluster.start()
    while len(done) < wanted:
        if not cluster.clock.play():
            state = driver.core.state
            raise SimulationError(
                f"After {cluster.clock.now:.0f} s nothing is left to happen; {len(done)} of {wanted} steps are done "
                f"and the run is {state.status}: {state.reason_text}"
            )
        if driver.ended and len(done) < wanted:
            raise SimulationError(f"The run ended after {len(done)} of {wanted} steps: {driver.ended}")
    return report(scenario, cluster)


def _long_enough(scenario: Scenario) -> Scenario:
    """Let the run go on beyond the steps that are looked at, so that none of these is its last."""
    spec, steps = scenario.spec, scenario.warm_up + scenario.steps + 2
    budget = spec.budget.model_copy(update={"train_steps": steps, "seconds": None, "target": None})
    evaluation = spec.evaluation.model_copy(update={"every_steps": steps + 1, "tasks": 1})
    return scenario.model_copy(update={"spec": spec.model_copy(update={"budget": budget, "evaluation": evaluation})})
