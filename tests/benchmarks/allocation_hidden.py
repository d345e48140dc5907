"""Two policies take turns on one trainer device of a real run: how much of their swaps lies within rollout.

The real services; turns wait and rows are paced, so that a cohort's training fits into its rollout. Swaps are the
recorded intervals of suspensions and resumptions; rollout is the time from the first episode of a cohort to its last.
"""

import statistics
from itertools import pairwise
from typing import Any

import psycopg
from harness import Report, interleave, paired_ratios

from tests.support.system import Api

WARM_STEPS = 2
"""First steps are left out: children, caches and connections warm up in them."""
TIMEOUT_S = 600.0

Span = tuple[float, float]


def spec(devices: int, updates: int, lag: int) -> dict[str, Any]:
    """`planner` and `solver` are one policy, `verifier` the other."""
    policy = {"model": {"type": "factory", "size": "S"}, "warmup": None}
    return {
        "agents": {"planner": {"policy": "solver"}, "solver": {"policy": "solver"}, "verifier": {"policy": "verifier"}},
        "environment": {"type": "arithmetic", "latency": {"scale_s": 0.6, "sigma": 0.6, "cap_s": 3.0}},
        "policies": dict.fromkeys(("solver", "verifier"), policy),
        "batch": {"tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 4},
        "mechanisms": {"lag_policy": {"bound": lag}},
        "resources": {
            "training_devices": devices, "trainer_policies": 1, "pace": {"row_s": 0.005, "step_s": 0.1},
        },
        "seed": 7,
        "budget": {"train_steps": updates + WARM_STEPS, "target": None},
        "evaluation": {"every_steps": 10_000, "tasks": 1},
        "checkpoints": {"every_steps": 10_000},
    }  # fmt: skip


def within(spans: list[Span], others: list[Span]) -> float:
    """Return the seconds of some spans that lie within others, in the order of their beginnings."""
    apart: list[Span] = []
    for at, until in others:
        if apart and at <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(until, apart[-1][1]))
        else:
            apart.append((at, until))
    return sum(max(0.0, min(end, until) - max(begin, at)) for begin, end in spans for at, until in apart)


def measure(report: Report, api: Api, conn: psycopg.Connection, updates: int, repeats: int, lag: int) -> None:
    """Runs with one training device and with two, in turns; with a lag, a cohort plays while one is trained."""
    shares: list[float] = []
    seconds: list[float] = []

    def run(devices: int) -> float:
        made = api.create_run(name=f"hidden {devices}", spec=spec(devices, updates, lag))
        done = api.finish(made["id"], TIMEOUT_S)
        if done["status"] != "completed":
            raise RuntimeError(f"the run {done['status']}: {done['reason_text']}")
        rollouts = conn.execute(
            "SELECT extract(epoch FROM min(started_at))::float8, extract(epoch FROM max(finished_at))::float8 "
            "FROM store.episode WHERE run_id = %s AND origin = 'train' GROUP BY cohort ORDER BY 1",
            [done["no"]],
        ).fetchall()
        swaps = conn.execute(
            "SELECT t0, t1 FROM store.interval WHERE run_id = %s AND phase IN ('suspend', 'resume') AND t0 > %s",
            [done["no"], rollouts[WARM_STEPS][0]],
        ).fetchall()
        if devices == 1:
            taken = sum(end - begin for begin, end in swaps)
            shares.append(within(swaps, rollouts) / taken)
            seconds.append(taken / updates)
        starts = [begin for begin, _ in rollouts[WARM_STEPS:]]
        return statistics.median(after - before for before, after in pairwise(starts))

    took = interleave({"one": lambda: run(1), "two": lambda: run(2)}, repeats)
    report.ratio(f"swaps_within_rollout_lag{lag}", shares)
    report.ratio(f"step_time_of_two_devices_over_one_lag{lag}", paired_ratios(took["two"], took["one"]))
    report.figures[f"swap_s_of_a_step_lag{lag}"] = statistics.median(seconds)
    report.figures[f"step_s_one_device_lag{lag}"] = statistics.median(took["one"])
    report.figures[f"step_s_two_devices_lag{lag}"] = statistics.median(took["two"])
