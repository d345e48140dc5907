"""A team of one trained agent and one that plays with somebody else's model, through the real services."""

import asyncio
from pathlib import Path

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.chat_endpoint import ChatEndpoint, allowed_words
from tests.support.counting import assert_accounted
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

KEY = "sk-of-the-test"
STEPS = 2


def spec(endpoint: ChatEndpoint) -> dict:
    return {
        "agents": {
            "speaker": {},
            "listener": {"external": {"url": endpoint.url, "model": "first-word", "secret": "OPEN"}},
        },
        "environment": {"type": "reference_game"},
        "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": STEPS, "tasks": 4},
    }


async def test_an_external_agent_plays_and_is_recorded_and_never_trained(tmp_path: Path) -> None:
    async with ChatEndpoint(lambda asked: (allowed_words(asked) or ["?"])[0], KEY) as endpoint:
        allowed = {"FLEXMARL_EXTERNAL_HOSTS": endpoint.host, "FLEXMARL_EXTERNAL_SECRET_OPEN": KEY}
        await asyncio.to_thread(play, tmp_path / "home", allowed, endpoint)
    assert endpoint.requests
    assert {asked["model"] for asked in endpoint.requests} == {"first-word"}


def play(home: Path, allowed: dict[str, str], endpoint: ChatEndpoint) -> None:
    with System(home, environment=allowed) as system:
        api = system.api()
        run = api.finish(api.create_run(name="external", spec=spec(endpoint))["id"], 300)
        assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
        assert KEY not in str(run["spec"])
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            assert [check for check in consistency_report(conn, run["no"]) if not check.ok] == []
            assert_accounted(conn, run["no"], complete=False)
            made = conn.execute(
                "SELECT DISTINCT role, engine LIKE 'external:%%' FROM store.sample WHERE run_id = %s", [run["no"]]
            ).fetchall()
            assert sorted(made) == [("listener", True), ("speaker", False)]
            trained = conn.execute("SELECT DISTINCT policy FROM store.micro_batch WHERE run_id = %s", [run["no"]])
            assert trained.fetchall() == [("speaker",)]
        agents = {row["role"]: row for row in api.get(f"/runs/{run['id']}/agents")["results"]}
        assert agents["listener"]["trainable"] is False
