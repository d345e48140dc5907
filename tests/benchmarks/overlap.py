"""How much of the ideal overlap of rollout and training each trainer protocol and publication reaches.

The same tasks and number of updates through the real services (processes, HTTP, rows), one run after the other in turn.
Scheduling is what is measured, so turns and training are paced: an episode's turns wait for a log-normal time, and the
trainer declares what a micro-batch and a step take and waits until that is over; gradients and weights are real.

All runs have one seed, so the episodes of a cohort wait equally long in each of them, and a step is compared with the
synchronous run's step of the same cohort. The ideal of a step comes from that step's own phases: with rollout time R,
total backward phase W (from the first gradient asked for to the last accumulated, hops included) over M micro-batches
per policy, first group after F and the rest of an update U (step, publication),

    ideal = max(R + W / M, F + W) + U

where R + W / M is "all rollout, then the last micro-batch" and F + W "the first group, then all training". The share
of a step is (sync - run) / (sync - ideal). A wavefront hides part of U as well, and delayed publication most of W and
U, so their shares may exceed 1: the ideal is that of a cohort that is published as a whole.

Rollout and training are sized to balance: W is about what is left of R after the first group, the most that an overlap
can hide. A larger W makes the trainer alone decide how long a step takes; then nothing is left to schedule.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from harness import Report, interleave, paired_ratios, start

from tests.support.system import Api, System

WARM_STEPS = 2
"""First steps are left out: children, caches and connections warm up in them."""
TIMEOUT_S = 600.0

RUNS: dict[str, dict[str, Any]] = {
    "sync": {"trainer_protocol": "batch"},
    "micro_batch": {"trainer_protocol": "micro_batch"},
    "per_group": {"trainer_protocol": "per_group"},
    "mini_batch": {"trainer_protocol": "mini_batch", "lag_policy": {"bound": 1}},
    "wavefront": {"trainer_protocol": "micro_batch", "publication": "wavefront"},
    "wavefront_batch": {"trainer_protocol": "batch", "publication": "wavefront"},
    "delayed": {"trainer_protocol": "micro_batch", "publication": "delayed", "lag_policy": {"bound": 1}},
}
"""Options of the mechanisms under comparison; `sync` is the baseline. Everything else is equal."""

ESSENTIAL = ("sync", "micro_batch", "wavefront")
"""What the two targets compare; always measured."""


@dataclass(frozen=True, slots=True)
class Step:
    """Phases of one step, in seconds."""

    step: float
    rollout: float
    backward: float
    micro_batches: float
    first_group: float

    @property
    def rest(self) -> float:
        """What is neither rollout nor backward in a synchronous step."""
        return self.step - self.rollout - self.backward

    @property
    def ideal(self) -> float:
        overlapped = max(self.rollout + self.backward / self.micro_batches, self.first_group + self.backward)
        return overlapped + self.rest


def spec(run: str, updates: int) -> dict[str, Any]:
    policy = {"model": {"type": "factory", "size": "S"}, "warmup": None}
    return {
        "environment": {"latency": {"scale_s": 0.4, "sigma": 0.6, "cap_s": 2.4}},
        "policies": dict.fromkeys(("planner", "solver", "verifier"), policy),
        "batch": {
            "tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 8,
            "mini_batches": 2,
        },
        "mechanisms": RUNS[run],
        # Per row, so that the protocols do the same work however they slice it.
        "resources": {"pace": {"micro_batch_s": 0.02, "row_s": 0.0025, "step_s": 0.25}},
        "seed": 7,
        "budget": {"train_steps": updates + WARM_STEPS, "target": None},
        "evaluation": {"every_steps": 10_000, "tasks": 1},
        "checkpoints": {"every_steps": 10_000},
    }  # fmt: skip


def measure(api: Api, conn: psycopg.Connection, name: str, updates: int) -> list[Step]:
    run = api.create_run(name=f"overlap {name}", template="arithmetic", spec=spec(name, updates))
    done = api.finish(run["id"], TIMEOUT_S)
    if done["status"] != "completed":
        raise RuntimeError(f"{name} run {done['status']}: {done['reason_text']}")
    return steps_of(conn, done["no"])


def steps_of(conn: psycopg.Connection, run_no: int) -> list[Step]:
    """Read the phases of a run's steps from its rows: settle records, commands of the trainer, times of its last steps.

    A step lasts from the commit of one cohort's last optimizer step to that of the next, which holds for cohorts that
    overlap as well.
    """
    rollout = conn.execute(
        """
        WITH ends AS (SELECT cohort, draw, min(started_at) AS first, max(finished_at) AS last
                      FROM store.episode WHERE run_id = %s AND origin = 'train' GROUP BY cohort, draw)
        SELECT cohort, extract(epoch FROM max(last) - min(first))::float8,
               extract(epoch FROM min(last) - min(first))::float8
        FROM ends GROUP BY cohort ORDER BY cohort
        """,
        [run_no],
    ).fetchall()
    training = dict(
        conn.execute(
            """
            SELECT m.cohort, extract(epoch FROM max(c.done_at) - min(c.created_at))::float8
            FROM store.command c JOIN store.micro_batch m
              ON m.run_id = c.run_id AND m.policy = c.body->>'policy' AND m.no = (c.body->>'micro_batch')::int
            WHERE c.run_id = %s AND c.kind = 'accumulate' GROUP BY m.cohort
            """,
            [run_no],
        ).fetchall()
    )
    ends = conn.execute(
        """
        SELECT extract(epoch FROM max(v.at))::float8 FROM store.policy_version v
        JOIN (SELECT DISTINCT run_id, policy, version, cohort FROM store.micro_batch WHERE status = 'applied') m
          ON m.run_id = v.run_id AND m.policy = v.policy AND m.version = v.version
        WHERE v.run_id = %s GROUP BY m.cohort ORDER BY m.cohort
        """,
        [run_no],
    ).fetchall()
    cuts = conn.execute(
        "SELECT count(*)::float8 / count(DISTINCT (cohort, policy)) FROM store.micro_batch WHERE run_id = %s", [run_no]
    ).fetchone()
    assert cuts is not None
    steps = [later[0] - sooner[0] for sooner, later in pairwise(ends)]
    return [
        Step(steps[i - 1], rollout[i][1], training[rollout[i][0]], cuts[0], rollout[i][2])
        for i in range(WARM_STEPS, len(rollout))
    ]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", nargs="*", choices=tuple(RUNS), default=None, help="beside the essential ones")
    parser.add_argument("--updates", type=int, default=4, help="steps of a run that count")
    parser.add_argument("--repeats", type=int, default=3)


def _report(report: Report, found: Mapping[str, list[Step]]) -> None:
    """Compare every run's steps with the synchronous ones of the same cohorts."""
    syncs, times = found["sync"], {name: [step.step for step in steps] for name, steps in found.items()}
    for name in found:
        if name != "sync":
            shares = [(s.step - f.step) / (s.step - s.ideal) for s, f in zip(syncs, found[name], strict=True)]
            report.ratio(f"{name}_share_of_ideal_overlap", shares)
            report.ratio(f"{name}_speedup", paired_ratios(times["sync"], times[name]))
    report.ratio("wavefront_over_micro_batch", paired_ratios(times["micro_batch"], times["wavefront"]))
    for name in found:
        report.figures[f"{name}_step_s"] = statistics.median(times[name])
    for part in ("ideal", "rollout", "backward", "rest", "first_group"):
        report.figures[f"sync_{part}_s"] = statistics.median(getattr(step, part) for step in syncs)


def main() -> None:
    about = "share of the ideal overlap that each trainer protocol and publication reaches"
    report = start("overlap", about, options)
    chosen, repeats, updates = (report.settings.pop(name) for name in ("runs", "repeats", "updates"))
    wanted = () if report.quick else tuple(RUNS) if chosen is None else chosen
    names = tuple(name for name in RUNS if name in ESSENTIAL or name in wanted)
    updates, repeats = (2, 1) if report.quick else (updates, repeats)
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder, System(Path(folder) / "home") as system:
        Path(folder).chmod(0o711)
        api = system.api()
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            found: dict[str, list[Step]] = {name: [] for name in names}

            def run(name: str) -> float:
                steps = measure(api, conn, name, updates)
                found[name] += steps
                return statistics.median(step.step for step in steps)

            interleave({name: (lambda name=name: run(name)) for name in names}, repeats)
    _report(report, found)
    report.settings |= {"updates": updates, "repeats": repeats, "runs": RUNS, "spec": spec("micro_batch", updates)}
    report.finish()


if __name__ == "__main__":
    main()
