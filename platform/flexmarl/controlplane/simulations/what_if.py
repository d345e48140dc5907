"""What other settings would have done for a run: what it recorded is read here and played by the simulator.

Invariant: the record, the fitted machines and the seeds are the same for the replay and for every alternative.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from django.db import transaction
from pydantic import ConfigDict, Field

from flexmarl.contracts.base import Strict
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import Conflict, FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.simulations import actions
from flexmarl.controlplane.simulations.choices import SimulationFailure, SimulationKind
from flexmarl.controlplane.simulations.comparing import ComparisonProgress, ComparisonResult
from flexmarl.controlplane.simulations.models import Simulation
from flexmarl.controlplane.simulations.requests import MOST_SEEDS, MOST_STEPS
from flexmarl.controlplane.simulations.results import gathered, seed_row, timeline
from flexmarl.simulator import Scenario, SimulationError, SimulationReport
from flexmarl.simulator.prediction.calibrating import Fit, fit
from flexmarl.simulator.prediction.whatif import AS_IT_WAS, Alternative, advice, alternatives, changed, ranked
from flexmarl.simulator.scenarios.recorded import (
    RecordedEpisode,
    RecordedTurn,
    RecordedWaits,
    RecordedWorkload,
    record_of,
    workload_of_record,
)
from flexmarl.simulator.scenarios.teams import workload_of
from flexmarl.store.reads import recorded, timings

MOST_EPISODES = 4096
"""Of the newest ones, that are played again."""
LEAST_STEPS = 3
"""Train steps whose episodes must be stored: the first one says how things start, not how they go."""


class TooLittleRecorded(Conflict):
    code = "too_little_recorded"
    title = "The run has recorded too little to replay"


class WhatIf(Strict):
    model_config = ConfigDict(frozen=True)

    run: str
    steps: int = Field(default=4, ge=1, le=MOST_STEPS)
    warm_up: int = 1
    seeds: int = Field(default=3, ge=1, le=MOST_SEEDS)
    presets: tuple[str, ...] = ()
    """Names of what is played: as it was, and each alternative that is legal."""
    refused: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run, ready to be played again."""

    workload: RecordedWorkload
    fit: Fit
    actual_step_s: float
    episodes: int
    steps: int

    def scenario(self, spec: ExperimentSpec, steps: int, warm_up: int, seed: int) -> Scenario:
        """Return what plays it under a specification of its team."""
        machine = self.fit.machine
        return Scenario(spec=spec, workload=self.workload, machine=machine, steps=steps, warm_up=warm_up, seed=seed)


@transaction.atomic
def create_what_if(
    actor: Actor, run: Run, *, steps: int = 4, seeds: int = 3, only: tuple[str, ...] = (), name: str = ""
) -> Simulation:
    """Ask what other settings would do for a run. Raises TooLittleRecorded, or ValidationProblem for unknown ones."""
    actor.require(Scope.RUNS_WRITE, run.project_id)
    episodes, played_for = recorded.counted(store_connection(), run.no)
    if played_for < LEAST_STEPS:
        raise too_little(run, episodes, played_for)
    legal, refused = _sorted(ExperimentSpec.model_validate(run.spec), only)
    wish = WhatIf(
        run=run.key,
        steps=steps,
        seeds=seeds,
        presets=(AS_IT_WAS, *(one.name for one in legal)),
        refused=tuple({"preset": name, "problems": [p.model_dump() for p in found]} for name, found in refused),
    )
    simulation = Simulation(
        kind=SimulationKind.WHAT_IF,
        name=name or f"What if: {run.key}"[:64],
        project_id=run.project_id,
        owner_id=actor.user_id,
        run=run,
        request=wish.model_dump(mode="json"),
        total=len(wish.presets) * seeds,
    )
    return actions.insert(actor, simulation)


def too_little(run: Run, episodes: int, steps: int) -> TooLittleRecorded:
    """Return the refusal of a run that cannot be played again."""
    return TooLittleRecorded(
        f"{run.key} has {episodes} finished episodes of {steps} train steps stored; {LEAST_STEPS} steps are needed. "
        "Let it train longer; a run whose samples were deleted cannot be replayed."
    )


def offered(run: Run) -> dict[str, Any]:
    """Say what may be asked of a run, and how much it has recorded."""
    episodes, steps = recorded.counted(store_connection(), run.no)
    spec = ExperimentSpec.model_validate(run.spec)
    rows = []
    for one in alternatives(spec):
        made = changed(spec, one)
        refused = [] if isinstance(made, ExperimentSpec) else [problem.model_dump() for problem in made]
        rows.append({"name": one.name, "changes": dict(one.changes), "semantics": one.semantics, "refused": refused})
    return {"episodes": episodes, "steps": steps, "enough": steps >= LEAST_STEPS, "alternatives": rows}


def _sorted(
    spec: ExperimentSpec, only: tuple[str, ...]
) -> tuple[list[Alternative], list[tuple[str, tuple[Problem, ...]]]]:
    known = {one.name: one for one in alternatives(spec)}
    if unknown := [name for name in only if name not in known]:
        detail = f"{unknown[0]} is not an alternative of this run."
        hint = f"There are: {', '.join(known)}."
        raise ValidationProblem(
            detail, errors=[FieldError(f"/alternatives/{only.index(unknown[0])}", "unknown_value", detail, hint)]
        )
    legal, refused = [], []
    for one in [known[name] for name in only] or known.values():
        made = changed(spec, one)
        if isinstance(made, ExperimentSpec):
            legal.append(one)
        else:
            refused.append((one.name, made))
    return legal, refused


def read_record(run: Run) -> Recorded:
    """Read what a run recorded of late. Raises TooLittleRecorded."""
    conn = store_connection()
    spec = ExperimentSpec.model_validate(run.spec)
    rows = recorded.stretch(conn, run.no, MOST_EPISODES)
    turns = [RecordedTurn(*row) for row in rows.turns]
    stored = {(turn.draw, turn.member) for turn in turns}
    episodes = [_episode(row) for row in rows.episodes if (row[0], row[1]) in stored]
    if len({one.step for one in episodes}) < LEAST_STEPS:
        raise too_little(run, len(episodes), len({one.step for one in episodes}))
    own = fit(spec, timings.read(conn, run.no))
    together = [frozenset(stage) for stage in workload_of(spec).stages if len(stage) > 1]
    waits = None if own.workers else RecordedWaits(own.beside_engine_s(turns), starts=_at_once(spec))
    record = record_of(episodes, turns, together, rows.failed_share, waits)
    first = min(one.step for one in episodes)
    seconds = recorded.step_seconds(conn, run.no, max(2, first + 2))
    steps = len({one.step for one in episodes})
    return Recorded(workload_of_record(record), own, fmean(seconds) if seconds else 0.0, len(episodes), steps)


def _at_once(spec: ExperimentSpec) -> bool:
    """Tell whether all episodes of a step are asked for at once: then only the rollout worker starts one late."""
    return spec.mechanisms.lag_policy.bound == 0 and spec.mechanisms.parallel.episodes is None


def _episode(row: tuple[Any, ...]) -> RecordedEpisode:
    draw, member, step, began, ended, score, transcript = row
    order = tuple((str(one[0]), int(one[1])) for one in transcript if isinstance(one, list) and len(one) >= 2)
    return RecordedEpisode(draw, member, step, began, ended, score, order)


def played(row: Simulation, playing: ComparisonProgress) -> ComparisonResult:
    """Play a run as it was and with each change; what comes to no end is told and the others go on.

    Raises TooLittleRecorded.
    """
    assert row.run is not None
    wish = WhatIf.model_validate(row.request)
    found = read_record(row.run)
    spec = ExperimentSpec.model_validate(row.run.spec)
    known = {one.name: one for one in alternatives(spec)}
    presets: dict[str, Any] = {}
    timelines: dict[str, Any] = {}
    reports: dict[str, list[SimulationReport]] = {}
    for place, name in enumerate(wish.presets):
        own = spec if name == AS_IT_WAS else changed(spec, known[name])
        assert isinstance(own, ExperimentSpec)
        done, error = _seeds(own, found, wish, (place * wish.seeds, name), playing)
        presets[name] = gathered([seed_row(seed, report) for seed, report in enumerate(done)], error)
        if done:
            reports[name] = done
            timelines[name] = timeline(done[0])
    playing.told(row.total, "")
    if AS_IT_WAS not in reports:
        return ComparisonResult({"presets": presets}, {}, SimulationFailure.NO_END, presets[AS_IT_WAS]["error"])
    return ComparisonResult({"presets": presets, "what_if": _told(found, reports, known)}, timelines)


def _seeds(
    spec: ExperimentSpec, found: Recorded, wish: WhatIf, place: tuple[int, str], playing: ComparisonProgress
) -> tuple[list[SimulationReport], str]:
    """Play one specification under every seed. `place`: how many were played before, and its name."""
    done: list[SimulationReport] = []
    for seed in range(wish.seeds):
        playing.told(place[0] + seed, f"{place[1]}, seed {seed}")
        try:
            done.append(playing.simulate(found.scenario(spec, wish.steps, wish.warm_up, seed)))
        except SimulationError as ended:
            return [], str(ended)
    return done, ""


def _told(found: Recorded, reports: dict[str, list[SimulationReport]], known: dict[str, Alternative]) -> dict[str, Any]:
    base = reports[AS_IT_WAS]
    replay = fmean(report.step_s for report in base)
    advised = [advice(known[name], base, done, found.actual_step_s) for name, done in reports.items() if name in known]
    return {**basis(found, replay), "advice": ranked(advised)}


def basis(found: Recorded, replay_step_s: float) -> dict[str, Any]:
    """Say what was played again, how far the replay is off, and which speeds were read off the run."""
    engine, trainer, actual = found.fit.machine.engine, found.fit.machine.trainer, found.actual_step_s
    return {
        "actual_step_s": round(actual, 4),
        "replay_step_s": round(replay_step_s, 4),
        "error": round(replay_step_s / actual - 1.0, 4) if actual and replay_step_s else None,
        "episodes": found.episodes,
        "steps": found.steps,
        "fitted": {
            "engine_token_s": engine.token,
            "engine_batch": engine.batch,
            "engine_load_s": engine.load,
            "engine_tokens_s": found.fit.tokens_s,
            "replies_at_once": found.fit.at_once,
            "turn_wait_s": found.fit.machine.delays.turn or found.workload.record.own_wait_s,
            "trainer_token_s": trainer.token,
            "trainer_micro_batch_s": trainer.micro_batch,
            "trainer_step_s": trainer.step,
            "trainer_swap_s": trainer.swap,
        },
    }
