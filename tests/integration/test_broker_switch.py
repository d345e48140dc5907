"""The broker's machine is lost and its replica takes its place behind the same address: everybody finds it.

A sentinel promotes, HAProxy looks who is the master, as docs/operations.md recommends.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from channels_redis.pubsub import RedisPubSubChannelLayer
from dramatiq.errors import BrokerConnectionError

from flexmarl.controlplane.common.brief_redis import client_of, limits_of_layers
from flexmarl.launcher.processes import wait_until
from tests.integration.test_broker import Bench
from tests.support.broker_pair import BrokerPair, broker_pair
from tests.support.counting import assert_accounted
from tests.support.infrastructure import remark
from tests.support.system import System

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture
def pair(short_tmp: Path) -> Iterator[BrokerPair]:
    with broker_pair(short_tmp / "brokers") as pair:
        yield pair


def test_queues_hints_and_sockets_are_there_again_at_the_promoted_replica(pair: BrokerPair) -> None:
    bench = Bench(pair.url)
    try:
        bench.delay(0, hint=True)
        layer = RedisPubSubChannelLayer(hosts=[{"address": pair.url, **limits_of_layers()}])
        asyncio.run(told_before_and_after(layer, pair.kill_master))
        began = time.monotonic()
        assert wait_until(lambda: answers(pair.url), 60)
        remark("after a switch of the broker", f"answers {time.monotonic() - began:.1f} s after the sockets did")
        # As a driver does: what nobody took is sent again.
        assert wait_until(lambda: sent_and_seen(bench, 1), 60)
    finally:
        bench.heartbeat.stop()
        bench.broker.hints.stop()
        bench.worker.stop(timeout=3000)


async def told_before_and_after(layer: RedisPubSubChannelLayer, switch: Callable[[], None]) -> None:
    """Tell a group of a socket something, lose the broker, and tell it again until it hears that."""
    channel = await layer.new_channel()
    await layer.group_add("run.1", channel)
    await layer.group_send("run.1", {"seq": 1})
    assert await asyncio.wait_for(layer.receive(channel), 60) == {"seq": 1}
    hearing = asyncio.ensure_future(layer.receive(channel))
    await asyncio.to_thread(switch)
    began = time.monotonic()
    while not hearing.done():
        assert time.monotonic() - began < 120, "the socket hears nothing any more"
        with contextlib.suppress(redis.RedisError, OSError):  # a hint that is lost
            await layer.group_send("run.1", {"seq": 2})
        await asyncio.wait([hearing], timeout=0.2)
    assert hearing.result() == {"seq": 2}
    remark("after a switch of the broker", f"sockets hear again after {time.monotonic() - began:.1f} s")
    await layer.flush()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_run_goes_on_at_the_promoted_replica(pair: BrokerPair, short_tmp: Path) -> None:
    spec = {"budget": {"train_steps": 12, "target": None}, "evaluation": {"tasks": 8}}
    with System(short_tmp / "home", environment={"REDIS_URL": pair.url}) as system:
        api, before = system.api(), system.processes()
        run = api.create_run(name="switched", template="reference_game", spec=spec)
        step = api.wait(run["id"], lambda found: found["step"] >= 3, 240)["step"]
        pair.kill_master()
        began = time.monotonic()
        api.wait(run["id"], lambda found: found["step"] > step + 1, 240)
        remark("after a switch of the broker", f"two steps later after {time.monotonic() - began:.1f} s")
        ended = api.finish(run["id"], 400)
        assert ended["status"] == "completed", ended["reason_text"]
        assert answers(pair.url)
        assert system.processes() == before, "no process was started again"
        assert api.consistency(run["id"])["ok"]
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            assert_accounted(conn, ended["no"])


def answers(url: str) -> bool:
    try:
        return bool(client_of(url).set("written", 1))
    except redis.RedisError:  # the proxy has nobody behind it yet
        return False


def sent_and_seen(bench: Bench, no: int) -> bool:
    try:
        bench.send(no, hint=True)
    except (BrokerConnectionError, redis.RedisError):  # the connection of before
        return False
    return wait_until(lambda: any(seen == no for seen, _ in bench.seen), 2)
