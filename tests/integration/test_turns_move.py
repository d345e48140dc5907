"""Three real engines under load: in the middle of many replies one is killed and one stands still."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
import psycopg
import pytest
import torch
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.team import FactoryModel
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import Origin, PolicyPin
from flexmarl.store.control import runs
from flexmarl.store.reads import trajectories
from tests.support.engine_child import EngineChild, start_engine
from workers.models import build_model, tokenizer_json
from workers.rollout.engines.wire import Stats
from workers.rollout.environments.base import Ask, Outcome, Reply
from workers.rollout.player import Player, RunContext
from workers.transfer.local import LocalTier

pytestmark = [pytest.mark.services, pytest.mark.timeout(400)]

RUN, TOKENS, TURNS, GROUPS, MEMBERS = 1, 400, 2, 3, 4
WORDS = ("<pad>", "<bos>", "<eos>", "word", "other", "third")
SPEC = resolve({"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}})


class Talk:
    """One role that says something long, again and again."""

    roles = ("talker",)

    def make(self, task_seed: int, held_out: bool, rng: object) -> "Talk":
        talk = Talk()
        talk.turns = 0
        return talk

    def asks(self) -> list[Ask]:
        return [Ask("talker", "word other", TOKENS)] if self.turns < TURNS else []

    def act(self, replies: list[Reply]) -> None:
        self.turns += 1

    def outcome(self) -> Outcome:
        return Outcome({"talker": 1.0}, 1.0, True)

    def describe(self) -> dict[str, object]:
        return {"title": "talk", "facts": {}}

    async def close(self) -> None:
        """Hold nothing."""


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[EngineChild]]:
    LocalTier(tmp_path).put(build_model(FactoryModel(), WORDS, 1).state_dict())
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda i: start_engine(tmp_path, f"life-{i}", SPEC.document), range(3)))
    yield found
    for engine in found:
        engine.process.kill()
        engine.process.wait(30)


def prepare(conn: psycopg.Connection, engines: list[EngineChild], pin: PolicyPin) -> None:
    runs.create_run(conn, RUN, SPEC.document, RunStatus.RUNNING)
    conn.execute("INSERT INTO store.tokenizer VALUES (%s, 'speaker', %s)", [RUN, tokenizer_json(WORDS).decode()])
    conn.execute("INSERT INTO store.node (name, address, incarnation) VALUES ('n', '127.0.0.1:1', 'i')")
    for i, engine in enumerate(engines):
        conn.execute(
            "INSERT INTO store.device (id, node, kind, ordinal, facts) VALUES (%s, 'n', 'cpu', %s, %s)",
            [f"n.cpu{i}", i, Jsonb({"class": "cpu"})],
        )
        lease = conn.execute(
            "INSERT INTO store.lease (device_id, run_id, use, incarnation, endpoint, secret) "
            "VALUES (%s, %s, 'engine', %s, %s, 'secret') RETURNING id",
            [f"n.cpu{i}", RUN, engine.incarnation, engine.url],
        ).fetchone()
        conn.execute(
            "INSERT INTO store.engine_policy (lease_id, incarnation, policy, version, digest) "
            "VALUES (%s, %s, 'speaker', %s, %s)",
            [lease[0], engine.incarnation, pin.version, pin.digest],
        )
    groups = tuple(GroupOrder(draw=draw, task_seed=draw, members=MEMBERS) for draw in range(GROUPS))
    order = PlayGroups(
        pool="default", epoch=1, origin=Origin.TRAIN, groups=groups, pins={"speaker": pin}, sampling_seed=7
    )
    conn.execute(
        "INSERT INTO store.command (run_id, no, seq, epoch, kind, route, queue, body) "
        "VALUES (%s, 1, 1, 1, 'play_groups', 'broker', 'rollout.default', %s::jsonb)",
        [RUN, order.model_dump_json()],
    )


@pytest.fixture
async def player(store_url: str) -> AsyncIterator[Player]:
    with ConnectionPool(store_url, min_size=1, max_size=2, kwargs={"autocommit": True}) as pool:
        player = Player(pool)
        yield player
        await player.close()


async def talking(player: Player) -> RunContext:
    """Let the run's episodes be long talks."""
    context = await player._open(RUN)
    agent = context.spec.agents["speaker"]
    sampling = agent.sampling.model_copy(update={"max_tokens": TOKENS})
    agent = agent.model_copy(update={"policy": "speaker", "sampling": sampling})
    batch = context.spec.batch.model_copy(update={"episode_timeout_s": 300.0, "max_attempts": 1})
    spec = context.spec.model_copy(update={"agents": {"talker": agent}, "batch": batch})
    player._contexts[RUN] = context = replace(context, stage=Talk(), spec=spec)
    return context


async def told(engine: EngineChild, path: str, body: object = None) -> bytes:
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as session:
        method = "GET" if body is None else "POST"
        async with session.request(method, engine.url + path, data=msgspec.json.encode(body)) as response:
            assert response.status == 200, await response.text()
            return await response.read()


async def until_in_the_middle(engine: EngineChild) -> None:
    """Wait until an engine has been generating a while."""
    async with asyncio.timeout(120):
        while True:
            stats = msgspec.json.decode(await told(engine, "/stats"), type=Stats)
            if stats.generated_tokens >= 200 and stats.running:
                return
            await asyncio.sleep(0.01)


async def test_every_episode_settles_once_when_engines_are_lost_under_load(
    store_conn: psycopg.Connection, player: Player, engines: list[EngineChild], tmp_path: Path
) -> None:
    pin = PolicyPin(
        version=0, digest=LocalTier(tmp_path).put(build_model(FactoryModel(), WORDS, 1).state_dict()).digest
    )
    for engine in engines:
        await told(engine, "/load", {"policy": "speaker", "version": 0, "digest": pin.digest})
    prepare(store_conn, engines, pin)
    context = await talking(player)
    playing = asyncio.create_task(player.play(RUN, 1))
    for engine, sign in ((engines[1], signal.SIGKILL), (engines[2], signal.SIGSTOP)):
        await until_in_the_middle(engine)
        os.kill(engine.process.pid, sign)
    async with asyncio.timeout(300):
        await playing

    rows = store_conn.execute("SELECT draw, member, status, turns, transcript FROM store.episode").fetchall()
    assert sorted(row[:2] for row in rows) == [(d, m) for d in range(GROUPS) for m in range(MEMBERS)]
    assert all(row[2:4] == ("finished", TURNS) for row in rows), rows
    assert store_conn.execute("SELECT count(*) FROM store.inbox").fetchone() == (GROUPS,), "a group settles once"
    moved = context.client.counters.moved
    remarks = [entry[2] for row in rows for entry in row[4] if len(entry) > 2]
    assert set(moved) == {"engine_unreachable", "silent"}
    assert 0 < len(remarks) <= moved.total(), (moved, remarks)
    assert_aligned(store_conn)


def assert_aligned(conn: psycopg.Connection) -> None:
    """Every token of every turn has the log-probability that the model gives it at its place."""
    model = build_model(FactoryModel(), WORDS, 1)
    keys = [(d, m, 1) for d in range(GROUPS) for m in range(MEMBERS)]
    turns = [turn for found in trajectories.details(conn, RUN, keys) for turn in found.turns]
    assert len(turns) == GROUPS * MEMBERS * TURNS
    for turn in turns:
        assert list(turn.segments) == [0, TOKENS]
        ids = torch.tensor([[*turn.arrays.prompt_ids(), *turn.arrays.response_ids()]])
        with torch.no_grad():
            scores = torch.log_softmax(model(ids).logits[0, len(turn.arrays.prompt_ids()) - 1 : -1], -1)
        chances = scores.gather(1, torch.tensor(turn.arrays.response_ids().tolist())[:, None])[:, 0].numpy()
        assert np.abs(chances - turn.arrays.response_logprobs()).max() < 1e-3
