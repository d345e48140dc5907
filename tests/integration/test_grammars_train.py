"""Chat agents that are held to grammars train through every real process: each reply is what it must be."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flexmarl.contracts.reply_grammars import LIBRARY, ReplyGrammar, digest_of
from flexmarl.store.reads.report import consistency_report
from tests.support.agent_program import Program
from tests.support.chat_templates import END, small_chat_model, tokenizer
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(600)]

STEPS = 2
PATTERN = "-?[0-9]{1,3}"
SCHEMA = {
    "type": "object",
    "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["sum"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_chat_model(tmp_path_factory.mktemp("grammars") / "model")


def run_of(model: Path, trainer: str, **more: Any) -> dict[str, Any]:
    policy = {"model": {"type": "folder", "path": str(model)}, "trainer": trainer, "precision": "fp32"}
    return {
        "policies": {"solver": policy, "reviser": policy},
        "batch": {"tasks_per_step": 2, "episodes_per_task": 4, "micro_batch_groups": 1, "rollout_groups": 2},
        "algorithm": {"advantage": {"type": "reinforce"}, "entropy": {"start": 0.01}, "kl": {"coefficient": 0.01}},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 2},
        **more,
    }


def gaps(conn: psycopg.Connection, no: int) -> float:
    """Return the largest difference of the trainer's log-probabilities and the engines' in a run."""
    query = "SELECT max((stats ->> 'logprob_gap_max')::float8) FROM store.micro_batch WHERE run_id = %s"
    return float(conn.execute(query, [no]).fetchone()[0])


def held(conn: psycopg.Connection, no: int) -> dict[str, set[str]]:
    """Return by role what replies of a run were held to, as turns name it."""
    rows = conn.execute(
        "SELECT DISTINCT s.role, k.span ->> 7 FROM store.sample s, jsonb_array_elements(s.spans) AS k(span) "
        "WHERE s.run_id = %s",
        [no],
    ).fetchall()
    found: dict[str, set[str]] = {}
    for role, digest in rows:
        found.setdefault(role, set()).add(digest or "")
    return found


@pytest.mark.parametrize("trainer", ["native", "transformers"])
def test_a_team_one_of_which_is_held_to_an_expression_trains(system: System, model: Path, trainer: str) -> None:
    api = system.api()
    agents = {
        "solver": {"sampling": {"structured": {"type": "regex", "pattern": PATTERN}, "temperature": 0.9}},
        "reviser": {"sampling": {"structured": {"type": "json_schema", "of": SCHEMA}}},
    }
    spec = run_of(model, trainer, environment={"type": "sums", "reply_tokens": 24}, agents=agents)
    run = api.finish(api.create_run(name=f"held-{trainer}", spec=spec)["id"], 300)
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    words = tokenizer()
    end = words.token_to_id(END)
    shown = api.get(f"/runs/{run['id']}/trajectories?limit=100")["results"]
    ended = 0
    for one in shown:
        for turn in api.get(f"/runs/{run['id']}/trajectories/{one['id']}")["turns"]:
            text, whole = turn["response_text"].removesuffix(END), turn["finish"] == "stop"
            ended += whole
            if whole and turn["role"] == "solver":
                assert re.fullmatch(PATTERN, text), text
            elif whole:
                assert 0 <= json.loads(text)["sum"] <= 99
    assert ended > len(shown), "most replies are whole"
    with psycopg.connect(system.database_url) as conn:
        bodies = dict(
            conn.execute("SELECT digest, body FROM store.reply_grammar WHERE run_id = %s", [run["no"]]).fetchall()
        )
        named = held(conn, run["no"])
        assert gaps(conn, run["no"]) < 1e-5
        assert all(check.ok for check in consistency_report(conn, run["no"]))
    assert {digest for own in named.values() for digest in own} == bodies.keys()
    assert len(bodies) == 2
    for digest, body in bodies.items():
        grammar = ReplyGrammar.model_validate_json(body)
        assert (digest_of(body), grammar.stop, grammar.library) == (digest, (end,), LIBRARY)


def test_calls_of_a_program_name_formats_and_train_under_them(system: System, model: Path) -> None:
    api = system.api()
    environment = {"type": "program", "seats": ["solver", "reviser"], "reply_tokens": 60, "formats": "held"}
    spec = run_of(model, "native", environment=environment, agents={"solver": {}, "reviser": {}})
    run = api.create_run(name="formats", spec=spec)
    shape = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}
    program = Program(api, run["id"], solver_asks={"response_format": shape})
    program.start()
    try:
        run = api.finish(run["id"], 300)
    finally:
        program.ended.set()
        program.join(60)
    assert (program.failure, program.lost) == (None, [])
    assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
    with psycopg.connect(system.database_url) as conn:
        named = held(conn, run["no"])
        assert gaps(conn, run["no"]) < 1e-5
        assert all(check.ok for check in consistency_report(conn, run["no"]))
    assert len(named["solver"]) == 1, "each call of this seat named the format"
    assert "" not in named["solver"]
    assert named.get("reviser", {""}) == {""}
    said = [text for own in program.played.values() for text in own[::2]]
    whole = [text for text in said if text.rstrip().endswith("}")]
    assert len(whole) > len(said) / 2
    assert all(0 <= json.loads(text)["sum"] <= 99 for text in whole)
