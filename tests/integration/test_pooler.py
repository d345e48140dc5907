"""PgBouncer in front of PostgreSQL: one session per client works as without it, shared sessions are refused at once."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from flexmarl.host.exits import CONFIGURATION
from flexmarl.store import sessions
from flexmarl.store.connection import connect
from flexmarl.store.control import host_jobs, inbox
from flexmarl.store.errors import SessionsNotKept
from tests.support.pooler import pooled
from tests.support.system import ROOT, System
from workers.database import open_pool

pytestmark = pytest.mark.services


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_shared_sessions_are_found(store_url: str, short_tmp: Path, mode: str) -> None:
    with pooled(store_url, mode, short_tmp) as through, pytest.raises(SessionsNotKept):
        sessions.check(through)


def test_shared_sessions_are_found_while_others_are_busy(store_url: str, short_tmp: Path) -> None:
    """Several sessions of the server are idle or in use then, so another client may get one that was not ours."""
    with pooled(store_url, "transaction", short_tmp) as through:
        others = [psycopg.connect(through) for _ in range(4)]
        for conn in others:
            conn.execute("SELECT 1")
        for conn in others[:2]:
            conn.rollback()
        with pytest.raises(SessionsNotKept):
            sessions.check(through)
        for conn in others:
            conn.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [["manage.py", "drive"], ["manage.py", "serve", "--port", "0"], ["-m", "workers.run", "--role", "rollout"]],
    ids=lambda command: command[1],
)
def test_a_process_behind_shared_sessions_names_the_setting(
    store_url: str, redis_url: str, short_tmp: Path, command: list[str]
) -> None:
    environment = {
        **os.environ,
        "REDIS_URL": redis_url,
        "FLEXMARL_HOME": str(short_tmp),
        "FLEXMARL_SECRET_KEY": "of-this-test",
        "FLEXMARL_CLUSTER_KEY": "of-this-test",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
        "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.development",
    }
    with pooled(store_url, "transaction", short_tmp) as through:
        environment["DATABASE_URL"] = through
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == CONFIGURATION, done.stderr
    assert "pool_mode = session" in done.stderr.strip().splitlines()[-1]


def test_a_session_behind_the_pooler_is_ones_own(store_url: str, short_tmp: Path) -> None:
    """What needs a session works: hints, locks, limits, prepared statements. The next client finds none of it."""
    with pooled(store_url, "session", short_tmp) as through:
        sessions.check(through)
        with connect(through, "one", statement_s=7.0) as one, connect(through, "two") as two:
            one.execute(f"LISTEN {inbox.CHANNEL}")
            two.execute("SELECT pg_notify(%s, '5')", [inbox.CHANNEL])
            assert [note.payload for note in one.notifies(timeout=60, stop_after=1)] == ["5"]
            assert one.execute("SHOW statement_timeout").fetchone() == ("7s",)
            assert two.execute("SHOW statement_timeout").fetchone() == ("5min",)
            assert host_jobs.try_to_provide(one)
            assert not host_jobs.try_to_provide(two)
        with open_pool(through, "pool", 1) as pool, pool.connection() as conn:
            for number in range(10):  # from the sixth time on it is prepared
                assert conn.execute("SELECT %s::int", [number]).fetchone() == (number,)
            assert conn.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("10s",)
            assert host_jobs.try_to_provide(conn), "the lock went with its session"


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_run_behind_the_pooler_finishes(database_url: str, short_tmp: Path) -> None:
    spec = {"budget": {"train_steps": 2, "target": None}, "evaluation": {"tasks": 8}}
    with (
        pooled(database_url, "session", short_tmp) as through,
        System(short_tmp / "home", environment={"DATABASE_URL": through}) as system,
    ):
        api = system.api()
        run = api.create_run(name="pooled", template="reference_game", spec=spec)
        ended = api.finish(run["id"], 400)
        assert ended["status"] == "completed", ended["reason_text"]
        assert api.consistency(run["id"])["ok"]
        assert system.database_url == through
