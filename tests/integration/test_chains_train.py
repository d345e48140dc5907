"""Conversations of several turns are trained as chains, through every real process; the books of their tokens close."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.chat_templates import small_chat_model
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS, STEPS = 3, 2
EPISODES = STEPS * 4 * 2


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_chat_model(tmp_path_factory.mktemp("chains") / "model")


def spec_of(model: Path, rounds: int) -> dict[str, Any]:
    policy = {
        "model": {"type": "folder", "path": str(model)},
        "tuning": {"type": "lora", "rank": 4, "alpha": 8},
        "precision": "fp32",
    }
    return {
        "environment": {"type": "sums", "reply_tokens": 6, "graph": {"rounds": rounds}},
        "policies": {"solver": policy, "reviser": policy},
        "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 4},
        "algorithm": {"advantage": {"type": "reinforce"}, "entropy": {"start": 0.05}},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 2},
    }


def closed(tokens: dict[str, Any]) -> bool:
    return tokens["sampled"] == tokens["delivered"] + sum(tokens["undelivered"].values()) + tokens["waiting"]


def test_each_seats_conversation_is_one_row_and_every_token_of_it_reaches_the_loss(system: System, model: Path) -> None:
    api = system.api()
    run = api.create_run(name="chains", template="chat_sums", spec=spec_of(model, ROUNDS))
    run = api.finish(run["id"], 600)
    assert run["status"] == "completed", run["reason_text"]
    with psycopg.connect(system.database_url) as conn:
        rows = conn.execute(
            "SELECT s.role, s.turn, jsonb_array_length(s.spans), s.n_response, "
            "(SELECT sum((k ->> 1)::int) FROM jsonb_array_elements(s.spans) k) "
            "FROM store.sample s JOIN store.episode e USING (run_id, draw, member, attempt) "
            "WHERE s.run_id = %s AND e.origin = 'train'",
            [run["no"]],
        ).fetchall()
        assert all(check.ok for check in consistency_report(conn, run["no"]))
    assert len(rows) == 2 * EPISODES
    assert {row[:3] for row in rows} == {("solver", 0, ROUNDS), ("reviser", 0, ROUNDS)}
    sampled = sum(row[3] for row in rows)
    assert sampled == sum(row[4] for row in rows)
    tokens = run["progress"]["tokens"]
    assert tokens == {"sampled": sampled, "delivered": sampled, "undelivered": {}, "waiting": 0, "breaks": {}}
    assert run["progress"]["samples_trained"] == 2 * EPISODES

    shown = api.get(f"/runs/{run['id']}/trajectories?limit=1")["results"][0]
    turns = api.get(f"/runs/{run['id']}/trajectories/{shown['id']}")["turns"]
    assert [(turn["role"], turn["turn"], turn["chain"]) for turn in turns] == [
        (role, number, 0) for number in range(ROUNDS) for role in ("solver", "reviser")
    ]
    assert all(turn["in_loss"] for turn in turns)
    first, *later = (turn for turn in turns if turn["role"] == "solver")
    for turn in later:
        assert turn["prompt_text"].startswith(first["prompt_text"] + first["response_text"])
        first = turn


def test_a_conversation_that_outgrows_its_model_ends_by_name_and_its_tokens_are_accounted_for(
    system: System, model: Path
) -> None:
    api = system.api()
    run = api.create_run(name="too long", template="chat_sums", spec=spec_of(model, 8))
    run = api.finish(run["id"], 600)
    assert run["status"] == "failed"
    assert "engine: context_overflow: " in run["reason_text"]
    tokens = run["progress"]["tokens"]
    assert tokens["delivered"] == 0
    assert tokens["undelivered"] == {"overflow": tokens["sampled"]} != {"overflow": 0}
