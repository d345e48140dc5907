"""What giving old episodes up between two turns saves where a few environments are slow.

Runs of one specification through the whole system (`manage.py up`: processes, broker, rows, gradients), one after the
other in turn. Groups are admitted by credit, several times what a step needs, under a bound of one version; an
environment waits for a normally distributed time at each answer, and in some episodes for much longer at the first. A
run plays no more than so many episodes at once, so that an episode which is played to its end in vain keeps its place
from another one. What differs is `at_turn` alone: `play`, or `abandon`.

`trained` is the tokens that steps were taken on, per second from the first commit to the last, of `abandon` over those
of `play`, per repetition; `steps` the time of a step of `play` over that of `abandon`: a step that lost groups to age
is smaller, and sooner done. `in_vain`: share of the sampled tokens that grew too old for any step; `given_up`: episodes
that were abandoned per step. Learning is as good as off, so that lengths stay as they are. Every run is counted on its
rows: nothing is lost or doubled.

`simulated`: the same choice in the simulator, over long-tailed episodes of some 5 turns, for several credits: tokens
and rows trained per second of `abandon` over those of `play`, and what was made in vain on either side; three seeds.
"""

import argparse
import statistics
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from harness import Report, interleave, paired_ratios, start

from flexmarl.orchestrator.state.tokens import Undelivered
from flexmarl.simulator.runs import alone, long_enough
from flexmarl.simulator.scenarios.library import compose
from tests.support.counting import assert_accounted
from tests.support.system import Api, System

WARM_STEPS = 2
"""The first steps are left out: children, caches and connections warm up, and nothing is old yet."""
TIMEOUT_S = 1800.0
SIDES = ("play", "abandon")
LAG = {"bound": 1, "at_admission": "trained", "in_flight": "resume", "at_cut": "drop"}
SHARES = (1.0, 2.0, 4.0)
WORKLOAD: dict[str, Any] = {
    "spec": {
        "agents": {"solver": {}},
        "environment": {"type": "arithmetic"},
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 1},
        "resources": {"rollout_devices": 2},
    },
    "workload": {
        "stages": [["solver"]],
        "rounds": {"median": 5, "sigma": 0.8, "least": 1, "most": 32},
        "each": {"prompt": 200, "reply": {"median": 200, "sigma": 0.8, "least": 8, "most": 2000}},
        "environment": {"mean": 5, "sigma": 3, "least": 0},
    },
    "machine": {"engine": {"token": 0.008, "batch": 48, "slots": 64}, "trainer": {"token": 0.0001, "step": 1.0}},
    "warm_up": 4,
    "steps": 20,
}


@dataclass(frozen=True, slots=True)
class Setting:
    steps: int
    """That count, of each run."""
    share: float
    """Groups beyond those of a step that may be on their way, as a share of these."""
    places: int
    """Episodes of the run that play at once."""
    usual_s: float
    """Mean wait of an answer; its deviation is half of it."""
    slow_share: float
    """Of the episodes."""
    slow_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """One run: its steps in seconds, and what became of what was sampled."""

    steps: list[float]
    trained: float
    """Tokens a second."""
    in_vain: float
    given_up: float


def spec(side: str, setting: Setting, seed: int) -> dict[str, Any]:
    usual = {"shape": "normal", "scale_s": setting.usual_s, "sigma": setting.usual_s / 2}
    latency = {**usual, "slow_share": setting.slow_share, "slow_s": setting.slow_s}
    still = {"model": {"type": "factory", "size": "S"}, "optimizer": {"type": "adamw", "learning_rate": 1e-9}}
    return {
        "agents": {"guesser": {}, "hinter": {}},
        "policies": {"guesser": still, "hinter": still},
        "environment": {"type": "hot_cold", "guesses": 8, "latency": latency},
        "algorithm": {"loss": {"type": "ppo_clip"}},
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 8, "rollout_groups": 1},
        "mechanisms": {
            "trainer_protocol": "batch",
            "parallel": {"episodes": setting.places},
            "redundancy": {"type": "extra_groups", "share": setting.share, "surplus": "continue"},
            "lag_policy": {
                "bound": 1, "at_admission": "trained", "in_flight": "resume", "at_cut": "drop", "at_turn": side,
            },
        },
        "seed": seed,
        "budget": {"train_steps": setting.steps + WARM_STEPS},
        "evaluation": {"every_steps": 10_000, "tasks": 1},
        "checkpoints": {"every_steps": 10_000},
    }  # fmt: skip


def measure(api: Api, conn: psycopg.Connection, side: str, setting: Setting, seed: int) -> Found:
    run = api.create_run(name=f"old episodes {side}", spec=spec(side, setting, seed))
    done = api.finish(run["id"], TIMEOUT_S)
    if done["status"] != "completed":
        raise RuntimeError(f"{side} run {done['status']}: {done['reason_text']}")
    assert_accounted(conn, done["no"], complete=False)
    commits = conn.execute(
        "SELECT extract(epoch FROM max(at))::float8 FROM store.policy_version WHERE run_id = %s "
        "GROUP BY version ORDER BY version",
        [done["no"]],
    ).fetchall()
    given_up = conn.execute(
        "SELECT count(*) FROM store.episode WHERE run_id = %s AND reason LIKE 'rollout: too_old:%%'", [done["no"]]
    ).fetchone()
    tokens = done["progress"]["tokens"]
    assert given_up is not None
    steps = [later[0] - sooner[0] for sooner, later in pairwise(commits)][WARM_STEPS:]
    return Found(
        steps,
        trained=tokens["delivered"] / (commits[-1][0] - commits[0][0]),
        in_vain=tokens["undelivered"].get("stale", 0) / tokens["sampled"],
        given_up=given_up[0] / len(commits),
    )


def _report(report: Report, found: dict[str, list[Found]]) -> None:
    for side, runs in found.items():
        report.figures[f"{side}_median_s"] = statistics.median(step for run in runs for step in run.steps)
        report.figures[f"{side}_in_vain"] = statistics.fmean(run.in_vain for run in runs)
        report.figures[f"{side}_given_up"] = statistics.fmean(run.given_up for run in runs)
    means = {side: [statistics.fmean(run.steps) for run in runs] for side, runs in found.items()}
    report.ratio("steps", paired_ratios(means["play"], means["abandon"]))
    report.ratio("trained", paired_ratios(*([run.trained for run in found[side]] for side in ("abandon", "play"))))


def simulated(report: Report) -> None:
    for share in SHARES[:1] if report.quick else SHARES:
        found = {side: [virtual(side, share, seed) for seed in range(1 if report.quick else 3)] for side in SIDES}
        for place, name in enumerate(("trained_tokens", "trained_rows")):
            ratio = paired_ratios(*([one[place] for one in found[side]] for side in reversed(SIDES)))
            report.figures[f"simulated, share {share:g}, {name}"] = statistics.median(ratio)
        for side, own in found.items():
            report.figures[f"simulated, share {share:g}, {side} in vain"] = statistics.fmean(one[2] for one in own)


def virtual(side: str, share: float, seed: int) -> tuple[float, float, float]:
    """Return tokens and rows trained per second, and the share of all sampled tokens that grew too old."""
    redundancy = {"type": "extra_groups", "share": share, "surplus": "continue"}
    mechanisms = {"lag_policy": LAG | {"at_turn": side}, "redundancy": redundancy}
    scenario = long_enough(compose(WORKLOAD, "april", {"seed": seed, "spec": {"mechanisms": mechanisms}}))
    cluster, first = alone(scenario), scenario.warm_up
    last = first + scenario.steps
    while len(cluster.log.stepped) < last and not cluster.driver.ended and cluster.clock.play():
        pass
    log, account = cluster.log, cluster.driver.core.state.totals.tokens
    seconds = log.stepped[last - 1] - log.stepped[first - 1]
    tokens, rows = (own[last - 1] - own[first - 1] for own in (log.trained, log.rows))
    return tokens / seconds, rows / seconds, account.lost.get(Undelivered.STALE, 0) / account.sampled


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", default=["system", "simulated"], choices=("system", "simulated"))
    parser.add_argument("--steps", type=int, default=10, help="steps of a run that count")
    parser.add_argument("--share", type=float, default=2.0, help="groups on their way beyond a step's, as a share")
    parser.add_argument("--places", type=int, default=64, help="episodes of the run that play at once")
    parser.add_argument("--usual-s", type=float, default=0.6, help="mean wait of an answer")
    parser.add_argument("--slow-share", type=float, default=0.2, help="share of the episodes that are slow")
    parser.add_argument("--slow-s", type=float, default=12.0, help="how much longer a slow one's first answer takes")
    parser.add_argument("--repeats", type=int, default=3)


def system(report: Report, setting: Setting, repeats: int) -> None:
    found: dict[str, list[Found]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder, System(Path(folder) / "home") as system:
        Path(folder).chmod(0o711)
        api = system.api()
        with psycopg.connect(system.database_url, autocommit=True) as conn:

            def run(side: str) -> float:
                found[side].append(measure(api, conn, side, setting, len(found[side]) + 1))
                return statistics.fmean(found[side][-1].steps)

            interleave({side: (lambda side=side: run(side)) for side in found}, repeats)
    _report(report, found)


def main() -> None:
    report = start("abandoning", "what giving old episodes up between two turns saves", options)
    repeats, parts = int(report.settings.pop("repeats")), list(report.settings.pop("parts"))
    setting = Setting(**report.settings)
    if report.quick:
        setting, repeats = Setting(3, 1.0, 16, 0.05, 0.15, 2.0), 1
    if "simulated" in parts:
        simulated(report)
    if "system" in parts:
        system(report, setting, repeats)
    report.settings |= {**asdict(setting), "repeats": repeats, "spec": spec("abandon", setting, 1)}
    report.finish()


if __name__ == "__main__":
    main()
