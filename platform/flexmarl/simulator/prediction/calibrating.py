"""What rollout workers take for a turn, such that a run's cohorts are played by the model in the time that they took.

Rows do not tell that: a worker is at work while engines are, and how much of it overlaps is what the model says. So the
run is simulated with what it tells of everything else, and the rest of its rollouts is the workers'. One number is read
off one measured time; nothing is fitted to steps, or to what devices did.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.timings import RunRows
from flexmarl.simulator.prediction.fitting import RunPace, machine, pace_of, profile_of
from flexmarl.simulator.prediction.predicting import simulated
from flexmarl.simulator.prediction.profile import Ends
from flexmarl.simulator.runs import SimulationError
from flexmarl.simulator.scenarios.recorded import RecordedTurn
from flexmarl.simulator.scenarios.scenario import Machine

ROUNDS, STEPS = 3, 2
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


class Fit(NamedTuple):
    """How fast one run was."""

    machine: Machine
    at_once: float
    """Tokens of a decode step."""
    tokens_s: float
    """Reply tokens a second of an engine that generates."""
    workers: bool
    """The rollout workers' own time is told, so that an episode takes nothing beside it and its engines."""

    def beside_engine_s(self, turns: Sequence[RecordedTurn]) -> float:
        """Return what a turn took beside its engine's work, in the mean."""
        engine = self.machine.engine
        step = engine.token * (1.0 + (max(1.0, self.at_once) - 1.0) / engine.batch)
        return max(0.0, fmean(turn.latency_s for turn in turns) - step * fmean(turn.reply for turn in turns))


def fit(spec: ExperimentSpec, rows: RunRows) -> Fit:
    """Return how fast one run was by its own rows, without ranges; what they do not tell has a default."""
    pace = calibrated(spec, pace_of(spec, rows, {}), rows)
    made = [(row.steps, row.tokens, row.seconds) for row in rows.decoded]
    steps, tokens, seconds = (sum(column) for column in zip((0, 0, 0.0), *made, strict=True))
    return Fit(
        machine=machine(spec, profile_of(spec, pace), Ends()),
        at_once=tokens / steps if steps else 1.0,
        tokens_s=tokens / seconds if seconds else 0.0,
        workers="platform.turn" in pace.platform,
    )
