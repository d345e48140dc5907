"""What seeded runs measured per agent, and the versions, checkpoints and attempts behind their charts."""

import hashlib
import random
from typing import Any

from flexmarl.contracts.decisions import Metric
from flexmarl.store.control.attempts import Timed

KEPT_EVERY = 40


def of_agents(story: Any, roles: list[str], start: float) -> list[Timed[Metric]]:
    """Rates, losses, clipped shares and versions of every step."""
    rng = random.Random(11)
    points: list[Timed[Metric]] = []
    for step in range(1, story.steps + 1):
        at, samples = start + step * story.step_s, step * 128
        for i, role in enumerate(roles):
            figures = (
                ("throughput/tokens", 480 + 160 * i + 60 * rng.random(), "mean"),
                ("throughput/samples", 60 + 4 * i + 6 * rng.random(), "mean"),
                ("train/loss", 0.4 / (1 + step / 40) + rng.gauss(0, 0.01), "mean"),
                ("train/clipped", min(1.0, abs(rng.gauss(0.02 + 0.01 * i, 0.01))), "share"),
                ("time/train", 0.3 + 0.1 * rng.random(), "sum"),
                ("policy/version", float(step), "last"),
            )
            points += [(at, Metric(name, step, value, role, stat, samples)) for name, value, stat in figures]
    return points


def versions(conn: Any, run_no: int, story: Any, roles: list[str], start: float) -> None:
    """Every policy's versions, a checkpoint every forty steps, and a second attempt half way."""
    for role in roles:
        rows = [
            (run_no, role, v, v - 1 if v else None, digest(run_no, role, v), facts(v), start + v * story.step_s)
            for v in range(story.steps + 1)
        ]
        conn.cursor().executemany(
            "INSERT INTO store.policy_version (run_id, policy, version, parent, digest, facts, at) "
            "VALUES (%s, %s, %s, %s, %s, %s::jsonb, to_timestamp(%s)) ON CONFLICT DO NOTHING",
            rows,
        )
    for step in range(KEPT_EVERY, story.steps + 1, KEPT_EVERY):
        conn.execute(
            "INSERT INTO store.checkpoint (run_id, label, step, versions, path, bytes) "
            "VALUES (%s, 'last', %s, '{}', %s, 31000000) ON CONFLICT DO NOTHING",
            [run_no, step, f"runs/{run_no}/periodic-{step}"],
        )
    for no, first in ((1, 0), (2, story.steps // 2)):
        conn.execute(
            "INSERT INTO store.attempt (run_id, no, epoch, verb, began_at, first_step) "
            "VALUES (%s, %s, %s, %s, to_timestamp(%s), %s) ON CONFLICT DO NOTHING",
            [run_no, no, no, "start" if no == 1 else "resume", start + first * story.step_s, first],
        )


def digest(run_no: int, role: str, version: int) -> str:
    return hashlib.sha256(f"{run_no} {role} {version}".encode()).hexdigest()


def facts(version: int) -> str:
    return '{"parameters": 412000}' if version == 0 else '{"grad_norm": 0.61, "seconds": 0.3}'
