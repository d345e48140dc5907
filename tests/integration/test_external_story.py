"""A team of one trained agent and one that plays with somebody else's model, through the real services."""

import asyncio
import re
from collections.abc import Callable

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.chat_endpoint import ChatEndpoint, allowed_words
from tests.support.counting import assert_accounted
from tests.support.system import EXTERNAL_KEY, EXTERNAL_PORT, EXTERNAL_SECRET, System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 2
SUM = "is what they are together, which takes more bytes than tokens:"


def spec(endpoint: ChatEndpoint) -> dict:
    return {
        "agents": {
            "speaker": {},
            "listener": {"external": {"url": endpoint.url, "model": "first-word", "secret": EXTERNAL_SECRET}},
        },
        "environment": {"type": "reference_game"},
        "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": STEPS, "tasks": 4},
    }


@pytest.fixture
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


async def test_an_external_agent_plays_and_is_recorded_and_never_trained(system: System) -> None:
    async with ChatEndpoint(_first_word, EXTERNAL_KEY, EXTERNAL_PORT) as endpoint:
        await asyncio.to_thread(play, system, endpoint)
    assert endpoint.requests
    assert {asked["model"] for asked in endpoint.requests} == {"first-word"}


async def test_an_external_model_alone_is_evaluated_on_questions_in_messages(system: System) -> None:
    """No policy of its run has a tokenizer; a long reply comes whole, in any script."""
    async with ChatEndpoint(lambda asked: f"é 漢字 {SUM} {_sum(asked)}", EXTERNAL_KEY, EXTERNAL_PORT) as endpoint:
        await asyncio.to_thread(evaluate, system, endpoint)
    assert endpoint.requests


def _sum(asked: dict) -> int:
    return sum(map(int, re.findall(r"\d+", asked["messages"][-1]["content"])[-2:]))


def evaluate(system: System, endpoint: ChatEndpoint) -> None:
    api = system.api()
    graph = {"type": "sequence", "order": ["solver"]}
    part = {"name": "sums", "environment": {"type": "sums", "reply_tokens": 32, "graph": graph}, "tasks": 3}
    suite = api.post("/suites", {"name": "questions", "content": {"parts": [part]}})["suite"]
    external = {"url": endpoint.url, "model": "adds", "secret": EXTERNAL_SECRET}
    asked = {"suite": suite, "name": "external", "entries": [{"name": "adds", "external": external}]}
    made = api.post("/evaluations", asked)
    run = api.finish(made["table"][0]["cells"][0]["run"], 300)
    assert run["status"] == "completed", run["reason_text"]
    [cell] = api.get(f"/evaluations/{made['id']}")["table"][0]["cells"]
    assert (cell["solved"], cell["tasks"]) == (3, 3)


def _first_word(asked: dict) -> str:
    return (allowed_words(asked) or ["?"])[0]


def play(system: System, endpoint: ChatEndpoint) -> None:
    api = system.api()
    run = api.finish(api.create_run(name="external", spec=spec(endpoint))["id"], 300)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    assert EXTERNAL_KEY not in str(run["spec"])
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
