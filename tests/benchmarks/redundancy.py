"""How far redundancy cuts the longest steps where a few environments are slow, and what that does to lengths.

Runs of one specification through the whole system (`manage.py up`: processes, broker, rows, gradients), one after the
other in turn. An environment waits for a normally distributed time at each answer; in 3 % of the episodes it is slow:
its first answer takes much longer, as of an environment that hangs and recovers. What differs is redundancy alone:

- `none`: a step waits for its slowest episode.
- `members`: `extra_members`; a group waits for as many as it needs.
- `groups`: `extra_groups`; a step waits for as many groups as it needs.
- `environments`: `extra_environments`; the slowest members play in a second environment beside.

`NAME_cut_max` and `NAME_cut_p99` are the longest step and the 99 % point of `none` over those of NAME, per repetition;
a step lasts from commit to commit. The first to finish are the short ones: `NAME_length_bias` is the mean number of
turns of a finished training episode over that of `none` (learning is as good as off, so that nothing else changes it).
Work is nearly all waiting; what the machine is otherwise busy with makes every step longer and the cuts smaller.
"""

import argparse
import statistics
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from harness import Report, interleave, paired_ratios, start

from tests.support.system import Api, System

WARM_STEPS = 1
"""The first step is left out: children, caches and connections warm up in it."""
TIMEOUT_S = 1800.0
SLOW_SHARE = 0.03

SIDES: dict[str, dict[str, Any]] = {
    "none": {"type": "none"},
    "members": {"type": "extra_members", "extra": 2},
    "groups": {"type": "extra_groups", "extra": 8},
    "environments": {"type": "extra_environments", "extra": 1},
}
QUICK = ("none", "members")


@dataclass(frozen=True, slots=True)
class Found:
    """One run: its steps in seconds, and turns per finished episode."""

    steps: list[float]
    turns: float

    @property
    def longest(self) -> float:
        return max(self.steps)

    @property
    def p99(self) -> float:
        return float(np.quantile(self.steps, 0.99))


@dataclass(frozen=True, slots=True)
class Setting:
    steps: int
    """That count, of each run."""
    usual_s: float
    """Mean wait of an answer; its deviation is half of it."""
    slow_s: float


def spec(side: str, setting: Setting, seed: int) -> dict[str, Any]:
    usual = {"shape": "normal", "scale_s": setting.usual_s, "sigma": setting.usual_s / 2}
    latency = {**usual, "slow_share": SLOW_SHARE, "slow_s": setting.slow_s}
    still = {"model": {"type": "factory", "size": "S"}, "optimizer": {"type": "adamw", "learning_rate": 1e-9}}
    return {
        "agents": {"guesser": {}, "hinter": {}},
        "policies": {"guesser": still, "hinter": still},
        "environment": {"type": "hot_cold", "latency": latency},
        "batch": {"tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
        "mechanisms": {"redundancy": SIDES[side]},
        "seed": seed,
        "budget": {"train_steps": setting.steps + WARM_STEPS},
        "evaluation": {"every_steps": 10_000, "tasks": 1},
        "checkpoints": {"every_steps": 10_000},
    }


def measure(api: Api, conn: psycopg.Connection, side: str, setting: Setting, seed: int) -> Found:
    run = api.create_run(name=f"redundancy {side}", spec=spec(side, setting, seed))
    done = api.finish(run["id"], TIMEOUT_S)
    if done["status"] != "completed":
        raise RuntimeError(f"{side} run {done['status']}: {done['reason_text']}")
    commits = conn.execute(
        "SELECT extract(epoch FROM max(at))::float8 FROM store.policy_version WHERE run_id = %s "
        "GROUP BY version ORDER BY version",
        [done["no"]],
    ).fetchall()
    turns = conn.execute(
        "SELECT avg(turns)::float8 FROM store.episode WHERE run_id = %s AND origin = 'train' AND status = 'finished'",
        [done["no"]],
    ).fetchone()
    assert turns is not None
    return Found([later[0] - sooner[0] for sooner, later in pairwise(commits)][WARM_STEPS:], turns[0])


def _report(report: Report, found: dict[str, list[Found]]) -> None:
    for side, runs in found.items():
        report.figures[f"{side}_max_s"] = max(run.longest for run in runs)
        report.figures[f"{side}_median_s"] = statistics.median(step for run in runs for step in run.steps)
        if side == "none":
            continue
        for name, value in (("max", lambda run: run.longest), ("p99", lambda run: run.p99)):
            cuts = paired_ratios([value(run) for run in found["none"]], [value(run) for run in runs])
            report.ratio(f"{side}_cut_{name}", cuts)
        report.ratio(
            f"{side}_length_bias", paired_ratios([run.turns for run in runs], [run.turns for run in found["none"]])
        )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=8, help="steps of a run that count")
    parser.add_argument(
        "--slow-s", type=float, default=20.0, help="how much longer a slow environment's first answer takes"
    )
    parser.add_argument("--usual-s", type=float, default=0.5, help="mean wait of an answer")
    parser.add_argument("--repeats", type=int, default=3)


def main() -> None:
    report = start("redundancy", "what redundancy makes of the longest steps", options)
    repeats = int(report.settings.pop("repeats"))
    setting = Setting(**report.settings)
    if report.quick:
        setting, repeats = Setting(1, 0.1, 3.0), 1
    found: dict[str, list[Found]] = {side: [] for side in (QUICK if report.quick else SIDES)}
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder, System(Path(folder) / "home") as system:
        Path(folder).chmod(0o711)
        api = system.api()
        with psycopg.connect(system.database_url, autocommit=True) as conn:

            def run(side: str) -> float:
                found[side].append(measure(api, conn, side, setting, len(found[side]) + 1))
                return found[side][-1].longest

            interleave({side: (lambda side=side: run(side)) for side in found}, repeats)
    _report(report, found)
    report.settings |= {**asdict(setting), "repeats": repeats, "sides": SIDES, "spec": spec("none", setting, 1)}
    report.finish()


if __name__ == "__main__":
    main()
