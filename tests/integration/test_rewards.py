"""Rewards in their own queue: episodes wait for them without a place, and no death or loss takes one away."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psycopg
import pytest
import redis
from psycopg_pool import ConnectionPool

from flexmarl.contracts.resolve import resolve
from flexmarl.store.data import rewards
from tests.integration.test_player import PINS, RUN, announce, make_run, order, put_command
from tests.support.scoring_service import ScoringService
from tests.support.scripted_engine import ScriptedEngine
from workers.broker import PromptBroker
from workers.external_access import ExternalAccess
from workers.rewards.scorer import Scorer
from workers.rollout.engines.wire import HeldVersion
from workers.rollout.player import Player

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine({name: HeldVersion(pin.version, pin.digest) for name, pin in PINS.items()}) as engine:
        yield engine


@pytest.fixture
async def service() -> AsyncIterator[ScoringService]:
    async with ScoringService() as service:
        yield service


def begin(
    conn: psycopg.Connection, engine: ScriptedEngine, reward: dict, draws: Iterable[int] = (10,), **parallel: int
) -> None:
    spec = {
        "agents": {"guesser": {}, "hinter": {}},
        "environment": {"type": "hot_cold"},
        "batch": {"episodes_per_task": 4},
        "reward": reward,
        "mechanisms": {"parallel": parallel},
    }
    make_run(conn, resolve(spec).document)
    announce(conn, engine)
    put_command(conn, 1, order(*draws))


def of_service(service: ScoringService, **more: object) -> dict:
    return {"type": "service", "url": service.url, "timeout_s": 120, **more}


@asynccontextmanager
async def playing(
    url: str, service: ScoringService | None = None, lose: int = 0, workers: int = 1
) -> AsyncIterator[Player]:
    """A player whose messages, but for the first `lose` of them, reach all of so many scorers of this process."""
    access = ExternalAccess(frozenset({service.host} if service else ()))
    lost, tasks, loop = [0], set(), asyncio.get_running_loop()
    with ConnectionPool(url, min_size=1, max_size=4, kwargs={"autocommit": True}) as pool:
        scorers = [Scorer(pool, access) for _ in range(workers)]

        def score(run_id: int, no: int) -> None:
            for scorer in scorers:
                task = loop.create_task(scorer.score(run_id, no))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        def push(queue: str, actor: str, run_id: int, no: int) -> None:
            assert (queue, actor) == ("reward.default", "score_episode")
            lost[0] += 1
            if lost[0] > lose:
                loop.call_soon_threadsafe(score, run_id, no)

        player = Player(pool, push=push)
        yield player
        await player.close()
        for scorer in scorers:
            await scorer.close()


def episodes(conn: psycopg.Connection) -> list[tuple]:
    return conn.execute("SELECT status, reason, scores, team_score FROM store.episode ORDER BY member").fetchall()


def tokens_said(conn: psycopg.Connection) -> list[dict[str, float]]:
    found: list[Counter[str]] = [Counter() for _ in range(4)]
    rows = conn.execute("SELECT member, role, n_response FROM store.sample").fetchall()
    for member, role, tokens in rows:
        found[member][role] += tokens
    return [{role: float(own.get(role, 0)) for role in PINS} for own in found]


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not ready():
            await asyncio.sleep(0.02)


async def test_an_episode_earns_what_the_function_says(store_url, store_conn, engine, service) -> None:
    begin(store_conn, engine, of_service(service))
    async with playing(store_url, service) as player:
        await player.play(RUN, 1)
    found = episodes(store_conn)
    assert [row[0] for row in found] == ["finished"] * 4
    assert [row[2] for row in found] == tokens_said(store_conn)
    told = store_conn.execute("SELECT body FROM store.inbox").fetchone()[0]["episodes"]
    assert [one["scores"] for one in told] == [row[2] for row in found]
    assert all(one["facts"]["turns"] == len(one["samples"]) for one in told)
    assert store_conn.execute("SELECT count(*) FROM store.reward_task").fetchone() == (0,)


async def test_an_episode_waits_for_its_reward_without_a_place(store_url, store_conn, engine, service) -> None:
    begin(store_conn, engine, of_service(service), episodes=1)
    service.hold.clear()
    async with playing(store_url, service) as player:
        work = asyncio.create_task(player.play(RUN, 1))
        await until(lambda: len(service.asked) == 4)
        assert not work.done(), "all four have played in the one place, and none has its reward"
        service.hold.set()
        await work
    assert [row[0] for row in episodes(store_conn)] == ["finished"] * 4


async def test_a_burst_is_shared_by_several_workers_and_nothing_is_computed_twice(
    store_url, store_conn, engine, service
) -> None:
    begin(store_conn, engine, of_service(service), draws=range(10, 26))
    service.hold.clear()
    async with playing(store_url, service, workers=3) as player:
        work = asyncio.create_task(player.play(RUN, 1))
        await until(lambda: len(service.asked) == 64)
        service.hold.set()
        await work
    assert store_conn.execute("SELECT status, count(*) FROM store.episode GROUP BY 1").fetchall() == [("finished", 64)]
    assert len({(one["draw"], one["member"]) for one in service.asked}) == len(service.asked) == 64


async def test_a_play_whose_run_is_forgotten_meanwhile_gets_its_rewards(store_url, store_conn, engine, service) -> None:
    begin(store_conn, engine, of_service(service))
    service.hold.clear()
    async with playing(store_url, service) as player:
        work = asyncio.create_task(player.play(RUN, 1))
        await until(lambda: len(service.asked) == 4)
        await player.close()  # as for the oldest of many runs
        service.hold.set()
        await work
    assert [row[0] for row in episodes(store_conn)] == ["finished"] * 4


async def test_lost_messages_lose_no_reward(store_url, store_conn, engine, monkeypatch) -> None:
    monkeypatch.setattr(rewards, "RESEND_S", 0.05)
    begin(store_conn, engine, {"type": "brevity", "cost_per_token": 0.125})
    async with playing(store_url, lose=9) as player:
        await player.play(RUN, 1)
    assert [row[0] for row in episodes(store_conn)] == ["finished"] * 4


async def test_a_failed_reward_is_data_and_holds_nobody(store_url, store_conn, engine, service, monkeypatch) -> None:
    monkeypatch.setattr("workers.rewards.scorer.AGAIN_FIRST_S", 0.01)
    monkeypatch.setattr(rewards, "RESEND_S", 0.05)
    begin(store_conn, engine, of_service(service, max_tries=2), episodes=1)
    service.script = [(400, "no such game")]
    async with playing(store_url, service) as player:
        await player.play(RUN, 1)
    found = episodes(store_conn)
    assert sorted(row[0] for row in found) == ["failed", "finished", "finished", "finished"]
    (reason,) = [row[1] for row in found if row[0] == "failed"]
    assert reason == "reward: refused: status 400: no such game"
    assert len(service.asked) == 4, "it was not played again for it, and what cannot pass is not asked again"


async def test_tries_that_may_pass_are_repeated_and_then_told(store_url, store_conn, engine, service, monkeypatch):
    monkeypatch.setattr("workers.rewards.scorer.AGAIN_FIRST_S", 0.01)
    monkeypatch.setattr(rewards, "RESEND_S", 0.05)
    begin(store_conn, engine, of_service(service, max_tries=2))
    service.script = [(503, "busy")] * 5
    async with playing(store_url, service) as player:
        await player.play(RUN, 1)
    found = episodes(store_conn)
    assert len(service.asked) == 8, "four of them, each asked twice"
    assert {row[0] for row in found} == {"failed", "finished"}
    reasons = {row[1] for row in found if row[0] == "failed"}
    assert reasons == {"reward: server_error: status 503: busy (try 2 of 2)"}


async def test_a_reward_that_does_not_come_in_time_is_given_up(store_url, store_conn, engine, service) -> None:
    begin(store_conn, engine, of_service(service, timeout_s=0.2, wait_s=0.5, max_tries=10))
    service.hold.clear()
    async with playing(store_url, service) as player:
        await player.play(RUN, 1)
    assert {row[:2] for row in episodes(store_conn)} == {("failed", "reward: no result within 0.5 s")}
    assert store_conn.execute("SELECT count(*) FROM store.sample").fetchone() == (0,)


def settings_of(store_url: str, redis_url: str, home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": store_url,
        "REDIS_URL": redis_url,
        "FLEXMARL_HOME": str(home),
        "FLEXMARL_CLUSTER_KEY": "of-this-test",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
    }


@contextmanager
def worker(role: str, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "workers.run", "--role", role]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


async def test_a_killed_worker_loses_no_episode_and_settles_none_twice(
    store_url, store_conn, redis_url, engine, service, short_tmp
) -> None:
    environment = settings_of(store_url, redis_url, short_tmp) | {"FLEXMARL_EXTERNAL_HOSTS": service.host}
    begin(store_conn, engine, of_service(service))
    service.hold.clear()
    broker = PromptBroker(redis_url)
    with ConnectionPool(store_url, min_size=1, max_size=2, kwargs={"autocommit": True}) as pool:
        player = Player(pool, push=broker.push)
        work = asyncio.create_task(player.play(RUN, 1))
        with worker("reward", environment, short_tmp / "first.log") as first:
            await until(lambda: len(service.asked) == 4)
            first.send_signal(signal.SIGKILL)
            first.wait(60)
        with redis.Redis.from_url(redis_url) as client:
            client.flushall()
        assert store_conn.execute("SELECT status, takes FROM store.reward_task").fetchall() == [("taken", 1)] * 4
        service.hold.set()
        with worker("reward", environment, short_tmp / "second.log") as second:
            await asyncio.wait_for(work, 120)
            second.send_signal(signal.SIGTERM)
            assert second.wait(20) == 0
        await player.close()
    assert len(service.asked) == 8, "every reward was computed twice"
    assert [row[0] for row in episodes(store_conn)] == ["finished"] * 4
    assert [row[2] for row in episodes(store_conn)] == tokens_said(store_conn)
    assert store_conn.execute("SELECT count(*) FROM store.inbox").fetchone() == (1,)


async def test_one_rollout_worker_plays_and_computes_though_plays_hold_all_its_threads(
    store_url, store_conn, redis_url, engine, short_tmp
) -> None:
    begin(store_conn, engine, {"type": "brevity"})
    broker = PromptBroker(redis_url)
    environment = settings_of(store_url, redis_url, short_tmp) | {"FLEXMARL_ROLLOUT_COMMANDS": "1"}
    with worker("rollout", environment, short_tmp / "rollout.log") as process:
        broker.push("rollout.default", "play_groups", RUN, 1)
        await until(lambda: store_conn.execute("SELECT status FROM store.command").fetchone() == ("done",))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    found = episodes(store_conn)
    assert [row[0] for row in found] == ["finished"] * 4
    said = [sum(own.values()) for own in tokens_said(store_conn)]
    before = [row[3] + 0.01 * tokens for row, tokens in zip(found, said, strict=True)]
    assert all(0.0 <= score <= 1.0 + 1e-6 for score in before)
    assert b"Traceback" not in (short_tmp / "rollout.log").read_bytes()
