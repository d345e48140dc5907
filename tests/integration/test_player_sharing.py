"""The rollout player with a real store and a real exchange: others' words become members, the own ones go out."""

import random
from pathlib import Path

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.shared_rollouts import SharedRollout, SharedTurn, task_digest
from flexmarl.store.telemetry.sharing_reports import read_totals
from tests.integration.test_player import PINS, RUN, SPEC, announce, make_run, order, put_command
from tests.support.exchange import Exchange
from tests.support.scripted_engine import ScriptedEngine
from workers.exchange.client import ExchangeClient
from workers.rollout.engines.wire import HeldVersion
from workers.rollout.environments.registry import family_of
from workers.rollout.player import Player

pytestmark = pytest.mark.services
SHARING = {"sampling": {"sharing": {"type": "exchange", "foreign": 2}}}


async def test_a_played_group_has_members_of_others_and_is_published(
    store_url: str, store_conn: psycopg.Connection, tmp_path: Path
) -> None:
    shared = resolve(
        {
            "agents": {"guesser": {}, "hinter": {}},
            "environment": {"type": "hot_cold"},
            "batch": {"episodes_per_task": 4, "episode_timeout_s": 5},
            **SHARING,
        }
    )
    make_run(store_conn, shared.document)
    described = family_of(SPEC.spec.environment).make(10, False, random.Random(0)).describe()
    secret = described["facts"]["secret"]
    said = SharedRollout(task_digest("hot_cold", described), (SharedTurn("guesser", secret, False),))
    held = {name: HeldVersion(pin.version, pin.digest) for name, pin in PINS.items()}
    with (
        Exchange(tmp_path / "exchange") as exchange,
        ConnectionPool(store_url, min_size=1, max_size=2, kwargs={"autocommit": True}) as pool,
    ):
        client = ExchangeClient(exchange.member("lab-b"))
        await client.post("default", [said])
        player = Player(pool, exchange=exchange.member("lab-a"))
        async with ScriptedEngine(held) as engine:
            announce(store_conn, engine)
            context = await player._context(RUN)
            assert context.sharing is not None
            assert await context.sharing.turn()
            put_command(store_conn, 1, order(10))
            await player.play(RUN, 1)
            assert await context.sharing.turn()
        rows = store_conn.execute(
            "SELECT member, solved, transcript::text FROM store.episode ORDER BY member"
        ).fetchall()
        assert [row[0] for row in rows] == [0, 1, 2, 3]
        assert [row[0] for row in rows if "said by the installation lab-b" in row[2]] == [2]
        assert rows[2][1], "scored by this installation's environment"
        found = read_totals(store_conn, RUN)
        assert (found.state, found.used, found.published) == ("connected", 1, 3)
        heard = (await client.read("default", 0)).rollouts
        assert {one.member for one in heard} == {"lab-a"}
        await client.close()
        await player.close()
