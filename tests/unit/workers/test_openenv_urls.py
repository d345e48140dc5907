"""Servers of OpenEnv behind URLs: each episode has a session of its own, which is ended however it ends; what hangs,
drops, floods or says garbage fails the attempt by name, and nobody is asked whom the operator did not allow."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from pydantic import ValidationError

from flexmarl.contracts.specification.environment import ENVIRONMENT
from flexmarl.contracts.specification.openenv import OpenEnvUrl
from flexmarl.language.messages import Message
from tests.support.openenv_endpoint import OpenEnvEndpoint
from workers.external_access import ExternalAccess
from workers.rollout.environments.base import Outcome, Reply
from workers.rollout.isolation import EnvironmentBroke
from workers.rollout.openenv_urls import OpenEnvPool
from workers.rollout.stages import begin_here, family_of

pytestmark = pytest.mark.asyncio

SHORT_S = 0.5


@pytest_asyncio.fixture
async def server() -> AsyncIterator[OpenEnvEndpoint]:
    made = OpenEnvEndpoint()
    async with made.http:
        yield made


@pytest_asyncio.fixture
async def pools() -> AsyncIterator[list[OpenEnvPool]]:
    made: list[OpenEnvPool] = []
    yield made
    for one in made:
        await one.close()


class Players:
    """Plays with a server."""

    def __init__(self, server: OpenEnvEndpoint, pools: list[OpenEnvPool]) -> None:
        self.server, self.pools = server, pools

    def pool(self, hosts: str | None = None, secrets: dict[str, str] | None = None, **settings: Any) -> OpenEnvPool:
        spec = OpenEnvUrl(url=f"ws://{self.server.host}/shop/ws", **settings)
        allowed = frozenset([self.server.host if hosts is None else hosts])
        self.pools.append(OpenEnvPool(spec, ExternalAccess(allowed, secrets or {})))
        return self.pools[-1]

    async def broke(self, pool: OpenEnvPool) -> str:
        with pytest.raises(EnvironmentBroke) as broke:
            await played(pool)
        return str(broke.value)


@pytest.fixture
def players(server: OpenEnvEndpoint, pools: list[OpenEnvPool]) -> Players:
    return Players(server, pools)


async def played(pool: OpenEnvPool, heard: list[str] | None = None, words: str = "on") -> Outcome:
    live = await pool.begin(3, True, 1)
    try:
        while asks := live.asks():
            if heard is not None:
                heard += [message.content for message in asks[0].messages]
            await live.act([Reply("player", words, Message("assistant", words))])
        return live.outcome()
    finally:
        live.leave()


async def ended(server: OpenEnvEndpoint) -> None:
    async with asyncio.timeout(60):
        while server.sessions:
            await asyncio.sleep(0.01)


async def test_an_episode_is_a_session_over_the_websocket(server: OpenEnvEndpoint, players: Players) -> None:
    heard: list[str] = []
    pool = players.pool(secrets={"SHOP": "mine"}, secret="SHOP", options={"shelf": 2})
    outcome = await played(pool, heard)
    assert (outcome.team_score, outcome.scores, outcome.solved) == (1.0, {"player": 1.0}, True)
    assert outcome.turn_rewards == {("player", 0): 0.5, ("player", 1): 0.5}
    assert heard == ["What you say is your action as it is: word.", "Say a word.", "on again"]
    assert server.heard[0] == {"type": "reset", "data": {"shelf": 2, "seed": 7, "episode_id": "7-1"}}
    assert server.heard[1] == {"type": "step", "data": {"word": "on"}}
    assert set(server.headers) == {"Bearer mine"}
    await ended(server)
    assert server.heard[-1] == {"type": "close"}
    await played(pool)
    assert server.headers == ["Bearer mine"] * 3, "its schema is asked for once"


async def test_a_turn_limit_cuts_off_and_what_the_server_refuses_is_told(
    server: OpenEnvEndpoint, players: Players
) -> None:
    outcome = await played(players.pool(max_turns=1, episode_reward="last"))
    assert (outcome.team_score, outcome.facts["cut_off"]) == (0.5, 1.0)
    server.what = "refuse"
    heard: list[str] = []
    assert (await played(players.pool(max_turns=2, unfinished_reward=0.25), heard)).team_score == 0.25
    assert heard[2] == "That is no legal action. Invalid message"
    known = "score: none: none of its 0 observations has a reward"
    assert (await players.broke(players.pool(max_turns=2))).startswith(known)


async def test_typed_actions_are_json(server: OpenEnvEndpoint, players: Players) -> None:
    server.schema = {"action": {"type": "object", "properties": {"item": {"type": "string"}, "n": {"type": "integer"}}}}
    await played(players.pool(), words='I say {"item": "mug", "n": 2}')
    assert server.heard[1] == {"type": "step", "data": {"item": "mug", "n": 2}}


BROKEN = {
    "hang": f"step: no answer within {SHORT_S:g} s",
    "hang_reset": f"boot: no answer within {SHORT_S:g} s",
    "drop": "step: unreachable: it closed the session",
    "flood": "step: oversized: its answer has more than 1048576 bytes",
    "garbage": "step: garbage: its answer is no JSON object",
    "raise": "step: its step failed: EXECUTION_ERROR: the road is closed",
    "much": "step: garbage: the reward of step is no number",
    "nan": "score: nonfinite: the score of player is nan, not a finite number",
    "none": "score: none: the last observation has no reward",
    "moved": "boot: refused: status 302 at /schema: 302: Found",
    "moved_later": "boot: refused: it answered with a redirect, which is not followed",
    "refused": "boot: refused: status 403 at /schema: no Bearer [secret]",
}


@pytest.mark.parametrize("what", list(BROKEN))
async def test_what_befalls_a_session_is_named_and_it_is_ended(
    server: OpenEnvEndpoint, players: Players, what: str
) -> None:
    server.what = what
    secret = {"secrets": {"SHOP": "mine"}, "secret": "SHOP"}
    pool = players.pool(**secret, setup_timeout_s=SHORT_S if "hang" in what else 60.0, step_timeout_s=SHORT_S)
    assert await players.broke(pool) == BROKEN[what]
    await ended(server)


async def test_a_server_without_a_free_session_is_asked_again(server: OpenEnvEndpoint, players: Players) -> None:
    server.capacity = 1
    pool = players.pool()
    first = await pool.begin(3, False, 1)
    waiting = asyncio.create_task(played(pool))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    first.leave()
    assert (await waiting).team_score == 1.0
    assert server.most == 1
    server.capacity = 0
    assert await players.broke(players.pool(setup_timeout_s=0.7)) == "boot: it had no free session within 0.7 s"


async def test_nobody_is_asked_whom_the_operator_did_not_allow(server: OpenEnvEndpoint, players: Players) -> None:
    known = f"boot: host_not_allowed: {server.host} is not among FLEXMARL_EXTERNAL_HOSTS of the rollout worker"
    assert await players.broke(players.pool(hosts="elsewhere.example")) == known
    missing = "boot: secret_missing: FLEXMARL_EXTERNAL_SECRET_SHOP is not set on the rollout worker"
    assert await players.broke(players.pool(secret="SHOP")) == missing
    assert not server.headers


async def test_a_cancelled_begin_ends_its_session(server: OpenEnvEndpoint, players: Players) -> None:
    server.what = "hang_reset"
    begun = asyncio.create_task(players.pool().begin(1, False, 1))
    async with asyncio.timeout(60):
        while not server.heard:
            await asyncio.sleep(0.01)
    begun.cancel()
    await asyncio.gather(begun, return_exceptions=True)
    await ended(server)


async def test_addresses_are_of_websockets_and_plays_are_not_copied() -> None:
    spec = ENVIRONMENT.variants()["openenv_url"]()
    assert family_of(spec).roles == ("player",)
    with pytest.raises(ValueError, match="cannot be copied"):
        begin_here(OpenEnvPool(OpenEnvUrl(), ExternalAccess()), 1, False, 1)
    for wrong in ("https://a.example/ws", "wss://a.example/", "wss://key@a.example/ws", "wss://a.example/ws?key=1"):
        with pytest.raises(ValidationError):
            OpenEnvUrl(url=wrong)
