"""What rollout workers take for a turn, such that a run's cohorts are played by the model in the time that they took.

Rows do not tell it: a worker is at work while engines are, and how much of that overlaps is what the model says. So the
run is simulated with what it tells of everything else, and the rest of its rollouts is the workers'. One number is read
off one measured time; nothing is fitted to steps, or to what devices did.
"""

from statistics import fmean

from flexmarl.contracts.paces import RunRows
from flexmarl.contracts.spec import ExperimentSpec
from flexmarl.simulator.prediction.fitting import RunPace, profile_of
from flexmarl.simulator.prediction.predicting import simulated
from flexmarl.simulator.prediction.profile import Ends
from flexmarl.simulator.runs import SimulationError

ROUNDS, STEPS = 2, 2
TURN = "platform.turn"


def calibrated(spec: ExperimentSpec, pace: RunPace, rows: RunRows) -> RunPace:
    """Return the pace of a run whose rollouts take as long in the model as they took; as it is where they tell none."""
    cohorts = [one for one in rows.played if one.decided > one.asked > 0.0 and one.turns]
    if TURN not in pace.platform or not cohorts:
        return pace
    took, turns = fmean(one.decided - one.asked for one in cohorts), fmean(one.turns for one in cohorts)
    for _ in range(ROUNDS):
        try:
            played = fmean(simulated(spec, profile_of(spec, pace), Ends(), STEPS, 0).rollouts)
        except SimulationError:
            return pace
        turn = max(0.0, pace.platform[TURN] + (took - played) / turns)
        pace = pace.model_copy(update={"platform": pace.platform | {TURN: turn}})
    return pace
