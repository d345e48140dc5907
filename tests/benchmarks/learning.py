"""Do the demo teams learn, through the real services, and how long does it take?

Per task and seed: a run from the vetted template, started over REST; the clock runs from the start request to the first
evaluation on held-out tasks that reaches the goal, or to the end of the run. `manage.py up` runs on this machine with
embedded services; nothing of a run is shared with the next but the warm processes.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import Report, start

from tests.support.system import Api, System

LIMIT_S = 600.0
Series = dict[tuple[str, str, str], tuple[list[float], list[float]]]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a team must reach in an evaluation, and the evaluation figures worth telling."""

    metric: str
    at_least: float
    told: tuple[str, ...] = ()


GOALS = {
    "reference_game": Goal("eval/solved", 0.95),
    "hot_cold": Goal("eval/solved", 0.95),
    "arithmetic": Goal("eval/solved", 0.9, ("eval/fact/balanced_accuracy",)),
    "kitchen": Goal("eval/fact/dishes", 1.9, ("eval/fact/dishes",)),
    # Games of other packages: random legal play gets 0.648, 0.04, 0.5 and 0.834.
    "tictactoe": Goal("eval/team_score", 0.9),
    "pursuit": Goal("eval/team_score", 0.5),
    "nim": Goal("eval/team_score", 0.9),
    "guess_the_number": Goal("eval/team_score", 0.9),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    reached: bool
    seconds: float
    """Start request to the evaluation that reached the goal; to the end when none did."""
    updates: float
    best: float
    told: dict[str, float]
    """Figures of the best evaluated vector."""


def learn(api: Api, task: str, seed: int) -> Outcome:
    goal, began = GOALS[task], time.time()
    run = api.create_run(name=f"learning {task} {seed}", template=task, spec={"seed": seed})
    done = api.finish(run["id"], LIMIT_S)
    if done["status"] != "completed":
        raise RuntimeError(f"{task} seed {seed}: {done['status']}, {done['reason_text']}")
    names = (goal.metric, *goal.told)
    by_time, by_step = api.series(run["id"], *names, x="time"), api.series(run["id"], *names)
    return outcome(goal, value_of(by_time, goal.metric), by_step, began, time.time())


def outcome(goal: Goal, curve: tuple[list[float], list[float]], by_step: Series, began: float, ended: float) -> Outcome:
    """Read the moment the goal was reached. `curve` is over seconds since the epoch, like `began` and `ended`."""
    times, values = curve
    steps = value_of(by_step, goal.metric)[0]
    hit = next((i for i, value in enumerate(values) if value >= goal.at_least), None)
    best = max(range(len(values)), key=values.__getitem__)
    return Outcome(
        reached=hit is not None,
        seconds=(times[hit] if hit is not None else ended) - began,
        updates=steps[hit if hit is not None else -1],
        best=values[best],
        told={name: value_of(by_step, name)[1][best] for name in goal.told},
    )


def value_of(series: Series, name: str) -> tuple[list[float], list[float]]:
    return next(points for (found, agent, _), points in series.items() if (found, agent) == (name, ""))


def tell(report: Report, task: str, outcomes: list[Outcome]) -> None:
    middle: Callable[[list[float]], float] = statistics.median
    report.figures[f"{task}_solved_share"] = sum(o.reached for o in outcomes) / len(outcomes)
    report.figures[f"{task}_median_s"] = middle([o.seconds for o in outcomes])
    report.figures[f"{task}_max_s"] = max(o.seconds for o in outcomes)
    report.figures[f"{task}_updates_median"] = middle([o.updates for o in outcomes])
    report.figures[f"{task}_best_median"] = middle([o.best for o in outcomes])
    report.figures[f"{task}_best_min"] = min(o.best for o in outcomes)
    for name in GOALS[task].told:
        short = name.rsplit("/", 1)[1]
        report.figures[f"{task}_{short}_median"] = middle([o.told[name] for o in outcomes])
        report.figures[f"{task}_{short}_min"] = min(o.told[name] for o in outcomes)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", default=",".join(GOALS), help="comma-separated")
    parser.add_argument("--seeds", type=int, default=5)


def main() -> None:
    report = start("learning", "seconds and updates until the demo teams have learned", options)
    tasks = ["reference_game"] if report.quick else str(report.settings["tasks"]).split(",")
    seeds = 1 if report.quick else int(str(report.settings["seeds"]))
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder:
        Path(folder).chmod(0o711)
        with System(Path(folder) / "home") as system:
            api = system.api()
            for task in tasks:
                outcomes = []
                for seed in range(seeds):
                    outcomes.append(learn(api, task, seed))
                    print(task, seed, outcomes[-1], flush=True)
                tell(report, task, outcomes)
    report.finish()


if __name__ == "__main__":
    main()
