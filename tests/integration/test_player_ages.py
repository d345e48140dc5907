"""Episodes that are too old, against the real store: given up between two turns, and written with their group."""

import asyncio

import psycopg
import pytest

from flexmarl.contracts.resolve import resolve
from tests.integration.test_player import PINS, RUN, announce, engine, make_run, order, player, put_command
from tests.support.scripted_engine import ScriptedEngine
from workers.rollout.engines.wire import HeldVersion
from workers.rollout.player import Player

__all__ = ["engine", "player"]

pytestmark = pytest.mark.services


async def test_episodes_that_no_step_can_train_any_more_are_given_up_and_their_group_settles(
    store_conn: psycopg.Connection, player: Player, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions come while a group plays that may be trained one version later: the registry says so."""
    monkeypatch.setattr("workers.rollout.engine_client.FRESH_S", 0.0)
    lag = {"bound": 1, "in_flight": "resume", "at_cut": "drop", "at_turn": "abandon"}
    document = resolve(
        {
            "agents": {"guesser": {}, "hinter": {}},
            "environment": {"type": "hot_cold", "guesses": 16},
            "algorithm": {"loss": {"type": "ppo_clip"}},
            "batch": {"episodes_per_task": 4},
            "mechanisms": {"lag_policy": lag},
        }
    ).document
    make_run(store_conn, document)
    announce(store_conn, engine)
    engine.delay_s = 0.05
    put_command(store_conn, 1, order(10).model_copy(update={"follows": dict.fromkeys(PINS, "resume")}))
    async with asyncio.timeout(60):
        play = asyncio.create_task(player.play(RUN, 1))
        while sum(len(one.prompt) for one in engine.requests) < 16:  # both policies have said something in each
            await asyncio.sleep(0.01)
        store_conn.execute("UPDATE store.engine_policy SET version = 5, digest = %s", ["c" * 64])
        engine.holds = dict.fromkeys(PINS, HeldVersion(5, "c" * 64))
        before = sum(len(one.prompt) for one in engine.requests)
        await play
    assert sum(len(one.prompt) for one in engine.requests) <= before + 8, "turns on their way, and one looked up then"
    rows = store_conn.execute("SELECT DISTINCT status, split_part(reason, ';', 1) FROM store.episode").fetchall()
    said = {reason for status, reason in rows if status == "cancelled"}
    assert len(said) == 1
    assert said.pop().endswith("er v3 said its first turn, v5 is served: the bound is 1")
    assert store_conn.execute("SELECT status FROM store.command").fetchone() == ("done",)
    event = store_conn.execute("SELECT body FROM store.inbox").fetchone()[0]
    given_up = [episode for episode in event["episodes"] if episode["status"] == "cancelled"]
    assert [episode["member"] for episode in event["episodes"]] == [0, 1, 2, 3]
    assert all(episode["wasted"] > 0 and not episode["samples"] for episode in given_up)
    assert sum(episode["wasted"] for episode in given_up) <= sum(len(one.prompt) for one in engine.requests)
