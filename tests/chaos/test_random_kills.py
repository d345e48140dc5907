"""A real run under random SIGKILLs of every process and restarts of every service: nothing lost, nothing twice.

The schedule follows FLEXMARL_CHAOS_SEED. In the short form every kind is struck alone once (several at once:
test_ordered_kills.py); the full form also compares the rate with that of undisturbed stretches:

    ./scripts/test --full tests/chaos/test_random_kills.py -n 0 -q -s

Figures are printed and written to `artifacts/chaos_recovery.json`.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise

import psycopg
import pytest

from tests.support.chaos import Chaos, Kind, Store, Strike, patient, percentile, schedule
from tests.support.counting import assert_accounted
from tests.support.forms import FULL, form
from tests.support.machine import grown
from tests.support.system import ROOT, Api, System

KILLS = form(short=len(Kind) + 1, full=200)
pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(max(1500, 30 * KILLS))]

APART = form(short=1.0, full=3.0)
"""The next strike comes this many recoveries after the last; the full form also takes its rate from the rests."""

SEED = int(os.environ.get("FLEXMARL_CHAOS_SEED", "20"))
UNDISTURBED_S = 20.0
ENDLESS = 1_000_000
"""Train steps of a run that is stopped when the kills are spent."""
TAIL_STEPS = 5
"""No strike comes so close to the end: there has to be work that proves the recovery."""
LEAST_SHARE = 0.6
"""Of the steps that the undisturbed run makes in the same time."""
P95_S = {
    Kind.DRIVER: 8.0,
    Kind.ROLLOUT: 8.0,
    Kind.DEVICE: 20.0,
    Kind.NODE: 8.0,
    Kind.ENGINE: 12.0,
    Kind.TRAINER: 12.0,
    Kind.WEB: 12.0,
    Kind.POSTGRES: 15.0,
    Kind.VALKEY: 6.0,
    Kind.FLUSHALL: 6.0,
}
"""Longest recovery of a kind that is struck alone: seconds, for the two cores of a CI machine."""
BURST_P95_S = 25.0
START_S = 3.0
"""A process like ours starts in this time there. Most of a recovery is starting processes."""
BUSY = 1.5
"""From this slowness on others hold the cores: bounds grow with it, and a rate of another minute is no measure."""
MOST_SLOW = 3.0
"""Bounds grow no further: a machine on which a start takes longer than this times `START_S` measures nothing."""

SPEC = {
    "agents": {"speaker": {}, "listener": {}},
    "environment": {"type": "reference_game"},
    "batch": {"tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4},
    "evaluation": {"every_steps": 100, "tasks": 16},
}


@dataclass(frozen=True, slots=True)
class Window:
    """Steps of a stretch of time."""

    steps: int
    seconds: float


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def test_random_kills_lose_nothing_and_repeat_nothing(system: System) -> None:
    api = system.api()
    undisturbed, slow = [undisturbed_run(system, api)] if FULL else [], [slowness()]
    run_id, number = start(api, "chaos", ENDLESS)
    strikes, window = strike_run(system, number, ENDLESS, KILLS, SEED, slow[0])
    if FULL:
        undisturbed.append(in_peace(Store(system, number)))
    patient(lambda: api.act(run_id, "stop"))
    run = patient(lambda: api.finish(run_id, 600))
    assert run["status"] == "stopped", run["reason_text"]
    assert run["step"] >= strikes[-1].back_step
    assert_nothing_lost_or_repeated(system, api, run)
    report(strikes, window, undisturbed, rests_between(strikes), [*slow, slowness()])


def in_peace(store: Store) -> Window:
    """Let a run work for a while without touching anything."""
    began = (store.step(), time.monotonic())
    time.sleep(UNDISTURBED_S)
    return Window(store.step() - began[0], time.monotonic() - began[1])


def undisturbed_run(system: System, api: Api) -> Window:
    """Let a run of its own work, for the rate to compare with."""
    run_id, number = start(api, "undisturbed", ENDLESS)
    window = in_peace(Store(system, number))
    api.act(run_id, "kill")
    api.finish(run_id, 60)
    return window


def start(api: Api, name: str, steps: int) -> tuple[str, int]:
    spec = {**SPEC, "budget": {"train_steps": steps, "target": None}}
    run_id = api.create_run(name=name, spec=spec)["id"]
    run = api.wait(run_id, lambda run: run["step"] >= 3, 300)
    return run_id, run["no"]


def strike_run(
    system: System, number: int, steps: int, kills: int, seed: int, slow: float, apart: float = APART
) -> tuple[list[Strike], Window]:
    """Strike a run until the kills are spent or its end is near; strikes are so many recoveries apart."""
    chaos = Chaos(system, number, seed)
    first, began = chaos.store.step(), time.monotonic()
    for kinds in schedule(chaos.random, kills, slow):
        if chaos.store.step() >= steps - TAIL_STEPS:
            break
        strike = chaos.strike(*kinds)
        print(f"{strike.at:6.1f} s  step {strike.step:4}  {strike.recovered_s:5.2f} s  {' '.join(kinds)}", flush=True)
        chaos.rest(strike, apart)
    return chaos.strikes, Window(patient(chaos.store.step) - first, time.monotonic() - began)


def assert_nothing_lost_or_repeated(system: System, api: Api, run: dict) -> None:
    """Check the run's own report, then the log and the rows by statements that share nothing with it."""
    found = patient(lambda: api.consistency(run["id"]))
    assert found["ok"], [check for check in found["checks"] if not check["ok"]]
    progress = run["progress"]
    ended = progress["episodes_finished"] + progress["episodes_failed"] + progress["episodes_cancelled"]
    assert progress["episodes_proposed"] == ended
    assert (progress["episodes_failed"], progress["episodes_cancelled"]) == (0, 0), "no kill costs an episode"
    with psycopg.connect(system.database_url) as conn:
        counted = assert_accounted(conn, run["no"])
        assert counted.in_training == progress["episodes_proposed"], "the API counts as the rows do"
        steps = conn.execute(
            "SELECT body->>'policy', count(*), count(DISTINCT body->>'version') FROM store.event "
            "WHERE run_id = %s AND kind = 'step_committed' GROUP BY 1",
            [run["no"]],
        ).fetchall()
        assert {(n, distinct) for _, n, distinct in steps} == {(run["step"], run["step"])}, "every step once"


def slowness() -> float:
    """Return how many times longer than `START_S` a process like ours takes to start now, at least 1."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch, django, psycopg, aiohttp"], check=True)
    return max(1.0, (time.monotonic() - began) / START_S)


def allowance(starts: list[float]) -> float:
    """Return by how much bounds grow: not at all unless others hold the cores most of the time."""
    usual = statistics.median(starts)
    return grown(usual, MOST_SLOW) if usual > BUSY else 1.0


def rests_between(strikes: list[Strike]) -> list[Window]:
    """Return the stretches in which everything worked, between one recovery and the next strike."""
    return [
        Window(after.step - before.back_step, after.at - before.at - before.recovered_s)
        for before, after in pairwise(strikes)
    ]


def pooled(windows: list[Window]) -> float:
    """Return the steps per second over several stretches."""
    seconds = sum(window.seconds for window in windows)
    return sum(window.steps for window in windows) / seconds if seconds else 0.0


def report(
    strikes: list[Strike], window: Window, undisturbed: list[Window], rests: list[Window], starts: list[float]
) -> None:
    """Print and write the figures, then hold them to their bounds. Lost and repeated were asserted before."""
    slow = allowance(starts)
    alone = {kind: [s.recovered_s for s in strikes if s.kinds == (kind,)] for kind in Kind}
    bursts = [s.recovered_s for s in strikes if len(s.kinds) > 1]
    kinds = {kind.value: figures(values, P95_S[kind] * slow) for kind, values in alone.items() if values}
    if bursts:
        kinds["burst"] = figures(bursts, BURST_P95_S * slow)
    # Other tests may begin beside this one and end again: the time between strikes was played under the same load.
    rate = min(pooled(windows) for windows in (undisturbed, rests) if windows)
    steps, seconds = window.steps, window.seconds
    share = steps / (rate * seconds) if rate else 0.0  # rests of the short form may be too short for a step
    body = {
        "seed": SEED, "kills": sum(len(strike.kinds) for strike in strikes), "recovery_s": kinds,
        "undisturbed_steps_per_s": rate, "steps": steps, "seconds": seconds, "share_of_undisturbed": share,
        "lost": 0, "applied_twice": 0, "load": os.getloadavg(), "slowness": starts, "bounds_grown": slow,
        "rate_between_strikes": pooled(rests), "strikes": [asdict(strike) for strike in strikes],
    }  # fmt: skip
    folder = ROOT / "artifacts"
    folder.mkdir(exist_ok=True)
    (folder / "chaos_recovery.json").write_text(json.dumps(body, indent=2) + "\n")
    for name, row in kinds.items():
        print(
            f"{name:15} n {row['n']:3}  median {row['median']:5.2f} s  p95 {row['p95']:5.2f} s  max {row['max']:5.2f}"
        )
    print(f"{body['kills']} kills in {seconds:.0f} s: {steps} steps, {share:.0%} of {rate:.2f} steps/s undisturbed")
    unseen = [kind.value for kind, values in alone.items() if not values]
    assert not unseen, f"never struck alone: {unseen}"
    late = {name: row for name, row in kinds.items() if row["p95"] > row["bound"]}
    if late or (FULL and share < LEAST_SHARE):
        pytest.fail(f"too late: {late}; {share:.0%} of the undisturbed steps, {LEAST_SHARE:.0%} are meant")


def figures(values: list[float], bound: float) -> dict[str, float]:
    return {
        "n": len(values), "median": percentile(values, 0.5), "p95": percentile(values, 0.95), "max": max(values),
        "bound": bound,
    }  # fmt: skip
