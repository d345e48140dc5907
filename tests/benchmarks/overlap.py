"""How much of the ideal overlap of rollout and training each trainer protocol and publication reaches.

The same tasks and number of updates through the real services (processes, HTTP, rows), one run after the other in turn.
Scheduling is what is measured, so turns and training are paced: an episode's turns wait for a log-normal time, and the
trainer declares what a micro-batch and a step take and waits until that is over; gradients and weights are real.

The ideal comes from the synchronous run's own phases: with rollout time R, total backward phase W (from the first
gradient asked for to the last accumulated, hops included) over M micro-batches per policy, first group after F and the
rest of an update U (step, publication),

    ideal = max(R + W / M, F + W) + U

where R + W / M is "all rollout, then the last micro-batch" and F + W "the first group, then all training". The share of
a run is (sync - run) / (sync - ideal). A wavefront hides part of U as well, and delayed publication most of W and U, so
their shares may exceed 1: the ideal is that of a cohort that is published as a whole.
"""

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from harness import interleave, paired_ratios, start

from tests.support.system import Api, System

WARM_STEPS = 2
"""First steps are left out: children, caches and connections warm up in them."""

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
class Phases:
    """Medians over the steps of one run, in seconds."""

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
        "environment": {"latency": {"scale_s": 0.25, "sigma": 0.6, "cap_s": 1.5}},
        "policies": dict.fromkeys(("planner", "solver", "verifier"), policy),
        "batch": {
            "tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 8,
            "mini_batches": 2,
        },
        "mechanisms": RUNS[run],
        # Per row, so that the protocols do the same work however they slice it.
        "resources": {"pace": {"micro_batch_s": 0.02, "row_s": 0.004, "step_s": 0.25}},
        "budget": {"train_steps": updates + WARM_STEPS, "target": None},
        "evaluation": {"every_steps": 10_000, "tasks": 1},
        "checkpoints": {"every_steps": 10_000},
    }  # fmt: skip


def measure(api: Api, conn: psycopg.Connection, name: str, updates: int) -> Phases:
    run = api.create_run(name=f"overlap {name}", template="arithmetic", spec=spec(name, updates))
    done = api.finish(run["id"], 600)
    if done["status"] != "completed":
        raise RuntimeError(f"{name} run {done['status']}: {done['reason_text']}")
    return phases(conn, done["no"])


def phases(conn: psycopg.Connection, run_no: int) -> Phases:
    """Read a run's phases from its rows: settle records, commands of the trainer, times of its last steps.

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
    kept = range(WARM_STEPS, len(rollout))
    return Phases(
        step=statistics.median(steps[WARM_STEPS - 1 :]),
        rollout=statistics.median(rollout[i][1] for i in kept),
        backward=statistics.median(training[rollout[i][0]] for i in kept),
        micro_batches=cuts[0],
        first_group=statistics.median(rollout[i][2] for i in kept),
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", nargs="*", choices=tuple(RUNS), default=None, help="beside the essential ones")
    parser.add_argument("--repeats", type=int, default=5)


def main() -> None:
    about = "share of the ideal overlap that each trainer protocol and publication reaches"
    report = start("overlap", about, options)
    chosen, repeats = report.settings.pop("runs"), report.settings.pop("repeats")
    wanted = () if report.quick else tuple(RUNS) if chosen is None else chosen
    names = tuple(name for name in RUNS if name in ESSENTIAL or name in wanted)
    updates, repeats = (3, 1) if report.quick else (5, repeats)
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder, System(Path(folder) / "home") as system:
        Path(folder).chmod(0o711)
        api = system.api()
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            found: dict[str, list[Phases]] = {name: [] for name in names}

            def run(name: str) -> float:
                found[name].append(measure(api, conn, name, updates))
                return found[name][-1].step

            times = interleave({name: (lambda name=name: run(name)) for name in names}, repeats)
    syncs = found["sync"]
    for name in names[1:]:
        shares = [(s.step - f.step) / (s.step - s.ideal) for s, f in zip(syncs, found[name], strict=True)]
        report.ratio(f"{name}_share_of_ideal_overlap", shares)
        report.ratio(f"{name}_speedup", paired_ratios(times["sync"], times[name]))
    report.ratio("wavefront_over_micro_batch", paired_ratios(times["micro_batch"], times["wavefront"]))
    for name in names:
        report.figures[f"{name}_step_s"] = statistics.median(times[name])
    for part in ("ideal", "rollout", "backward", "rest", "first_group"):
        report.figures[f"sync_{part}_s"] = statistics.median(getattr(phase, part) for phase in syncs)
    report.settings |= {"updates": updates, "repeats": repeats, "runs": RUNS, "spec": spec("micro_batch", updates)}
    report.finish()


if __name__ == "__main__":
    main()
