"""An outage of the database while groups are played is no failure of the command."""

import psycopg
import pytest

from flexmarl.store.data import groups
from tests.integration.test_player import RUN, announce, counts, engine, make_run, order, player, put_command
from tests.support.scripted_engine import ScriptedEngine
from workers.rollout.player import Player

__all__ = ["engine", "player"]  # fixtures
pytestmark = pytest.mark.services


async def test_a_database_that_was_away_is_no_failure_of_the_command(
    store_conn: psycopg.Connection,
    player: Player,
    engine: ScriptedEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_run(store_conn)
    announce(store_conn, engine)
    put_command(store_conn, 1, order(10))
    real = groups.put_groups

    def away(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("terminating connection")

    monkeypatch.setattr(groups, "put_groups", away)
    await player.play(RUN, 1)
    assert store_conn.execute("SELECT status, error FROM store.command").fetchone() == ("open", None)
    assert counts(store_conn) == (0, 0, 0), "nobody is told of a failure"
    monkeypatch.setattr(groups, "put_groups", real)
    await player.play(RUN, 1)
    assert store_conn.execute("SELECT status, takes FROM store.command").fetchone() == ("done", 2)
