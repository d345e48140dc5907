"""What plans say of runs before they are made, against what the runs take: step time, engines and trainers at work.

Both through the real services: each run is planned over REST, made with the plan's token, and compared by
`GET /runs/{id}/prediction`, with one definition of every figure on both sides. What the plans rest on is measured,
never fitted: a profile run of the team (POST /runs/measure) comes first, and each run that ends is learned from by the
next plan, as for everybody. Teams are those of the templates that the demo shows; settings are combinations of trainer
protocol, publication and lag. With `--paced` the waits of episodes and the times of trainers are declared, so that a
busy machine decides less; without, the tiny models run as fast as they can.

With `--rounds 2` everything is planned and run again, so that each setting was run before: its figures end in `again`.
How far two runs of one setting are apart, which no plan can know, is told beside (`apart`).

What the model itself is off is told as `own`: each run played by it again with the figures that its own rows tell.
"""

import argparse
import statistics
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import overlap
import psycopg
from harness import Report, start

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.prediction.calibrating import calibrated
from flexmarl.simulator.prediction.fitting import pace_of, profile_of
from flexmarl.simulator.prediction.predicting import simulated
from flexmarl.simulator.prediction.profile import Ends
from flexmarl.store.reads import timings
from tests.support.system import Api, System

SETTINGS: dict[str, dict[str, Any]] = {
    name: overlap.RUNS[name] for name in ("micro_batch", "sync", "per_group", "wavefront", "delayed")
}
TEAMS = ("reference_game", "arithmetic", "hot_cold")
COMPARED = ("step_s", "utilisation.engine", "utilisation.trainer")
AGAIN, OWN = "_again", "own_"
ALLOWED = 0.15
"""What a likely figure may be off."""
TIMEOUT_S = 900.0
PREDICT_TRIES = 5
SIMULATED = 12
"""Steps of the model with a run's own figures."""


def spec(team: str, setting: str, steps: int, paced: bool) -> dict[str, Any]:
    """Return what is laid over a team's template."""
    if paced:
        own = overlap.spec(setting, steps)
        return own | {"budget": {"train_steps": steps, "target": None}}
    return {
        "mechanisms": SETTINGS[setting],
        "batch": {"mini_batches": 2},
        "budget": {"train_steps": steps, "target": None},
        "checkpoints": {"every_steps": 10_000},
    }


def planned(api: Api, body: dict[str, Any]) -> dict[str, Any]:
    """Plan a run with a prediction; a busy machine may need some tries."""
    for left in reversed(range(PREDICT_TRIES)):
        try:
            found = api.post("/runs/plan", {**body, "predict": True})
        except Exception as error:  # an ApiError of a slow prediction, or urllib's time-out
            if not left or getattr(error, "status", 503) != 503:
                raise
        else:
            assert found["prediction"], found["errors"] or found["warnings"]
            return dict(found)
    raise AssertionError("unreachable")


class Again:
    """The model, with the figures of one run at a time."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url

    def ratios(self, no: int, compared: list[dict[str, Any]]) -> dict[str, float]:
        """Return what the model makes of a run over what it took, by the names of `COMPARED`."""
        with psycopg.connect(self._url, autocommit=True) as conn:
            found = conn.execute("SELECT spec FROM store.run_state WHERE run_id = %s", [no]).fetchone()
            assert found is not None
            spec = ExperimentSpec.model_validate(found[0])
            rows, kinds = timings.read(conn, no), timings.device_kinds(conn, no)
        pace = calibrated(spec, pace_of(spec, rows, kinds), rows)
        made = [simulated(spec, profile_of(spec, pace), Ends(), SIMULATED, seed) for seed in range(3)]
        told = {"step_s": statistics.fmean(one.step_s for one in made)} | {
            f"utilisation.{use}": statistics.fmean(one.busy[use] for one in made) for use in ("engine", "trainer")
        }
        return {row["name"]: told[row["name"]] / row["actual"] for row in compared if row["name"] in told}


def measure(api: Api, team: str, setting: str, steps: int, paced: bool) -> tuple[int, list[dict[str, Any]]]:
    """Plan, run and compare; returns the run's number and what was compared."""
    template = "arithmetic" if paced else team
    body = {"template": template, "name": f"{team} {setting}", "spec": spec(team, setting, steps, paced)}
    token = planned(api, body)["plan_token"]
    run = api.create_run(**body, plan_token=token)
    done = api.finish(run["id"], TIMEOUT_S)
    if done["status"] != "completed":
        raise RuntimeError(f"{team} {setting} {done['status']}: {done['reason_text']}")
    return run["no"], list(api.get(f"/runs/{run['id']}/prediction")["compared"])


def profile(api: Api, team: str) -> None:
    """Measure a team's models once, as the page offers it."""
    run = api.post("/runs/measure", {"template": team, "name": team})
    done = api.finish(run["id"], TIMEOUT_S)
    if done["status"] != "completed":
        raise RuntimeError(f"profile of {team} {done['status']}: {done['reason_text']}")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--teams", nargs="*", choices=TEAMS, default=["reference_game"])
    parser.add_argument("--settings", nargs="*", choices=tuple(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--steps", type=int, default=24, help="train steps of a run; the first does not count")
    parser.add_argument("--rounds", type=int, choices=(1, 2), default=1)
    parser.add_argument("--paced", action="store_true", help="declare waits of episodes and times of trainers")


def _report_own(report: Report, own: dict[str, dict[str, float]]) -> None:
    for name in COMPARED:
        if errors := [abs(ratios[name] - 1.0) for ratios in own.values()]:
            report.figures |= {
                f"{OWN}{name}_median_error": statistics.median(errors), f"{OWN}{name}_largest_error": max(errors),
                f"{OWN}{name}_within_15_percent": sum(error <= ALLOWED for error in errors),
            }  # fmt: skip


def _report(report: Report, rows: dict[str, list[dict[str, Any]]]) -> None:
    for key, compared in rows.items():
        for row in compared:
            if row["name"] in COMPARED and row["ratio"]:
                short = f"{key}_{row['name'].rpartition('.')[2]}"
                report.figures |= {
                    f"{short}_likely": row["likely"], f"{short}_actual": row["actual"], f"{short}_ratio": row["ratio"],
                }  # fmt: skip
    for ending in ("", AGAIN):
        ran = [compared for key, compared in rows.items() if key.endswith(AGAIN) == bool(ending)]
        for name in COMPARED:
            told = [row for compared in ran for row in compared if row["name"] == name and row["ratio"]]
            if errors := [abs(row["ratio"] - 1.0) for row in told]:
                report.figures |= {
                    f"{name}_median_error{ending}": statistics.median(errors),
                    f"{name}_largest_error{ending}": max(errors),
                    f"{name}_within_15_percent{ending}": sum(error <= ALLOWED for error in errors),
                    f"{name}_inside_the_range{ending}": sum(row["within"] for row in told),
                }
    for name in COMPARED:
        took = {key: row["actual"] for key, compared in rows.items() for row in compared if row["name"] == name}
        if apart := [abs(took[key] / took[f"{key}{AGAIN}"] - 1.0) for key in took if f"{key}{AGAIN}" in took]:
            report.figures |= {f"{name}_median_apart": statistics.median(apart), f"{name}_largest_apart": max(apart)}


def main() -> None:
    report = start("planned", "predicted over actual step time and utilisation", options)
    names = ("teams", "settings", "steps", "paced", "rounds")
    teams, settings, steps, paced, rounds = (report.settings.pop(name) for name in names)
    if report.quick:
        teams, settings, steps = teams[:1], settings[:1], 4
    teams = ["paced"] if paced else teams
    rows: dict[str, list[dict[str, Any]]] = {}
    own: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder, System(Path(folder) / "home") as system:
        Path(folder).chmod(0o711)
        api, again = system.api(), Again(system.database_url)
        for team in teams:
            profile(api, "arithmetic" if paced else team)
            for ending, setting in product(("", AGAIN)[:rounds], settings):
                no, found = measure(api, team, setting, steps, paced)
                key = f"{team}_{setting}{ending}"
                rows[key], own[key] = found, again.ratios(no, found)
                told = [(row["name"], row["likely"], row["actual"], row["ratio"]) for row in found]
                print(team, setting, told, {name: round(ratio, 3) for name, ratio in own[key].items()}, flush=True)
    _report(report, rows)
    _report_own(report, own)
    report.settings |= {
        "teams": teams,
        "settings": {name: SETTINGS[name] for name in settings},
        "steps": steps,
        "rounds": rounds,
    }
    report.finish()


if __name__ == "__main__":
    main()
