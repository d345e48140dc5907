"""How much of the ideal overlap of rollout and training the micro-batch pipeline reaches.

Presets `sync` and `flexmarl` on an environment with real waiting time, same tasks and number of updates, through the
real services, one after the other in turn. The ideal comes from the sync run's own phases: with rollout time R, total
backward phase W (from the first gradient asked for to the last accumulated, hops included) over M micro-batches per
policy, first group after F and the rest of an update U (step, publication),

    ideal = max(R + W / M, F + W) + U

where R + W / M is "all rollout, then the last micro-batch" and F + W "the first group, then all training". The share is
(sync - flexmarl) / (sync - ideal).
"""

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


def spec(updates: int) -> dict[str, Any]:
    return {
        "environment": {"latency": {"scale_s": 0.05, "sigma": 1.0, "cap_s": 1.0}},
        "policies": {role: {"model": {"size": "M"}} for role in ("cook_1", "cook_2")},
        "batch": {"tasks_per_step": 16, "episodes_per_task": 16, "micro_batch_groups": 2, "rollout_groups": 16},
        "budget": {"train_steps": updates + WARM_STEPS, "target": None},
        "evaluation": {"every_steps": 10_000, "tasks": 1},
        "checkpoints": {"every_steps": 10_000},
    }


def measure(api: Api, conn: psycopg.Connection, preset: str, updates: int) -> Phases:
    run = api.create_run(name=f"overlap {preset}", template="kitchen", preset=preset, spec=spec(updates))
    done = api.finish(run["id"], 600)
    if done["status"] != "completed":
        raise RuntimeError(f"{preset} run {done['status']}: {done['reason_text']}")
    return phases(conn, done["no"])


def phases(conn: psycopg.Connection, run_no: int) -> Phases:
    """Read a run's phases from its rows: settle records, closed intervals of the trainer, times of its steps."""
    rollout = conn.execute(
        """
        WITH ends AS (SELECT cohort, draw, min(started_at) AS first, max(finished_at) AS last
                      FROM store.episode WHERE run_id = %s AND origin = 'train' GROUP BY cohort, draw)
        SELECT cohort, extract(epoch FROM max(last) - min(first))::float8,
               extract(epoch FROM min(last) - min(first))::float8, extract(epoch FROM min(first))::float8
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
    cuts = conn.execute(
        "SELECT count(*)::float8 / count(DISTINCT (cohort, policy)) FROM store.micro_batch WHERE run_id = %s", [run_no]
    ).fetchone()
    assert cuts is not None
    starts = [row[3] for row in rollout]
    steps = [later - sooner for sooner, later in pairwise(starts)]
    kept = range(WARM_STEPS, len(steps))
    return Phases(
        step=statistics.median(steps[i] for i in kept),
        rollout=statistics.median(rollout[i][1] for i in kept),
        backward=statistics.median(training[rollout[i][0]] for i in kept),
        micro_batches=cuts[0],
        first_group=statistics.median(rollout[i][2] for i in kept),
    )


def main() -> None:
    report = start("overlap", "share of the ideal overlap that the micro-batch pipeline reaches")
    updates, repeats = (4, 1) if report.quick else (12, 5)
    with tempfile.TemporaryDirectory(prefix="flexmarl-bench-") as folder, System(Path(folder) / "home") as system:
        Path(folder).chmod(0o711)
        api = system.api()
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            found: dict[str, list[Phases]] = {"sync": [], "flexmarl": []}

            def run(preset: str) -> float:
                found[preset].append(measure(api, conn, preset, updates))
                return found[preset][-1].step

            times = interleave({"sync": lambda: run("sync"), "flexmarl": lambda: run("flexmarl")}, repeats)
    pairs = list(zip(found["sync"], found["flexmarl"], strict=True))
    report.ratio("share_of_ideal_overlap", [(s.step - f.step) / (s.step - s.ideal) for s, f in pairs])
    report.ratio("speedup", paired_ratios(times["sync"], times["flexmarl"]))
    report.figures["sync_step_s"] = statistics.median(times["sync"])
    report.figures["flexmarl_step_s"] = statistics.median(times["flexmarl"])
    for name in ("ideal", "rollout", "backward", "rest", "first_group"):
        report.figures[f"sync_{name}_s"] = statistics.median(getattr(phase, name) for phase in found["sync"])
    report.settings |= {"updates": updates, "repeats": repeats, "spec": spec(updates)}
    report.finish()


if __name__ == "__main__":
    main()
