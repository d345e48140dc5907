"""What an ordered run promises to repeat, read from the store: every version's weights and every trained sample.

Two runs of one ordered specification agree in all of it; two runs of another mode do not.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import orjson
import psycopg

from tests.support.system import ROOT, System

KEY = ("draw", "member", "role", "turn")


@dataclass(frozen=True)
class Bits:
    weights: dict[tuple[str, int], str]
    """(policy, version) -> content digest of its weights."""
    states: dict[tuple[str, int], str]
    """(policy, version) -> content digest of its optimizer state."""
    samples: dict[tuple[int, int, str, int], tuple[str, int]]
    """(draw, member, role, turn) -> digest of prompt, reply and log-probabilities; the version that made it."""
    sums: dict[tuple[str, int], list[tuple]]
    """(policy, micro-batch) -> its members in order, each with its advantage and weight."""


def bits_of(database_url: str, run_no: int) -> Bits:
    """Read a run that has ended. Attempts are left out: who needed two is told by no promise."""
    with psycopg.connect(database_url) as conn:
        versions = conn.execute(
            "SELECT policy, version, digest, state FROM store.policy_version WHERE run_id = %s", [run_no]
        ).fetchall()
        samples = conn.execute(
            "SELECT s.draw, s.member, s.role, s.turn, md5(s.payload), s.version FROM store.sample s "
            "JOIN store.episode e USING (run_id, draw, member, attempt) WHERE run_id = %s AND e.origin = 'train'",
            [run_no],
        ).fetchall()
        cuts = conn.execute(
            "SELECT policy, no, keys::text, advantages, weights FROM store.micro_batch "
            "WHERE run_id = %s AND status = 'applied'",
            [run_no],
        ).fetchall()
    return Bits(
        weights={(policy, version): digest for policy, version, digest, _ in versions},
        states={(policy, version): state for policy, version, _, state in versions},
        samples={tuple(row[:4]): (row[4], row[5]) for row in samples},
        sums={
            (policy, no): list(_members(keys, advantages, weights)) for policy, no, keys, advantages, weights in cuts
        },
    )


def _members(keys: str, advantages: list[float], weights: list[float]) -> Iterator[tuple]:
    given = iter(advantages)
    for (draw, member, _attempt, role, turn, turns), weight in zip(orjson.loads(keys), weights, strict=True):
        yield (draw, member, role, turn, *islice(given, turns), weight)


@contextmanager
def further_rollout_worker(system: System, log: Path) -> Iterator[int]:
    """Run one more rollout worker beside those of the installation; yields its pid."""
    published = orjson.loads((system.home / "run" / "environment.json").read_text())
    path = f"{ROOT}:{ROOT / 'platform'}"
    environment = {**os.environ, **published, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with log.open("ab") as out:
        worker = subprocess.Popen(
            [sys.executable, "-m", "workers.run", "--role", "rollout"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield worker.pid
    finally:
        worker.terminate()
        try:
            worker.wait(60)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
