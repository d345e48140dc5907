"""A team that decodes by block diffusion trains through every real process: step maps reach the trainer unchanged."""

from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from flexmarl.store.reads.trained_rows import TrainedRow, trained_rows
from tests.support.counting import assert_accounted
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 2
MODEL = {"type": "factory", "size": "S", "decoding": "block_diffusion", "block": 2, "denoising_steps": 2}
SPEC: dict[str, Any] = {
    "policies": {"speaker": {"model": MODEL}, "listener": {"model": MODEL, "log_probs": "diffu_grpo"}},
    "algorithm": {"loss": {"type": "ppo_clip"}, "kl": {"coefficient": 0.01}},
    "batch": {"tasks_per_step": 4, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2},
    "budget": {"train_steps": STEPS, "target": None},
    "evaluation": {"every_steps": 2, "tasks": 4},
}
GAPS = "SELECT max((stats ->> 'logprob_gap_max')::float8) FROM store.micro_batch WHERE run_id = %s AND policy = %s"


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


def steps_of(row: TrainedRow) -> list[int]:
    return np.frombuffer(row.row.steps, "<i2").tolist()


def test_a_team_trains_along_its_own_steps(system: System) -> None:
    api = system.api()
    done = api.finish(api.create_run(name="blocks", template="reference_game", spec=SPEC)["id"], 300)
    assert (done["status"], done["step"]) == ("completed", STEPS), done["reason_text"]
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        assert not [check for check in consistency_report(conn, done["no"]) if not check.ok]
        assert_accounted(conn, done["no"], complete=False)
        rows = list(trained_rows(conn, done["no"]))
        gaps = {policy: conn.execute(GAPS, [done["no"], policy]).fetchone() for policy in ("speaker", "listener")}
    assert 0.0 < gaps["speaker"][0] < 1e-4, "the trainer computes what the engine drew from"
    assert gaps["listener"] == (0.0,), "and is compared with no engine where all tokens are predicted at once"
    assert {len(steps_of(row)) for row in rows if row.policy == "speaker"} == {4}
    assert {len(steps_of(row)) for row in rows if row.policy == "listener"} == {2}
    for row in rows:
        maps = steps_of(row)
        assert all({0} <= set(maps[start : start + 2]) <= {0, 1} for start in range(0, len(maps), 2))
    assert len({tuple(steps_of(row)) for row in rows}) > 2, "replies were revealed in orders of their own"
    listed = api.get(f"/runs/{done['id']}/trajectories?limit=10")["results"]
    turns = api.get(f"/runs/{done['id']}/trajectories/{listed[0]['id']}")["turns"]
    assert [len(turn["response_text"].split()) for turn in turns] == [4, 2]
