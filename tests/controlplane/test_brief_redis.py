"""A broker that takes connections and never answers holds no call up."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from channels_redis.pubsub import RedisPubSubChannelLayer
from dramatiq.errors import BrokerConnectionError

from flexmarl.contracts.commands import BROKER_TIMEOUT_S
from flexmarl.controlplane.common import brief_redis, live
from flexmarl.controlplane.common.brief_redis import Breaker, BriefCache, client_of, limits, limits_of_layers
from workers.broker import PromptBroker

pytestmark = pytest.mark.slow


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the address of a server that listens and is silent."""
    monkeypatch.setattr(brief_redis, "SERVER", breaker := Breaker())
    monkeypatch.setattr(live, "SERVER", breaker)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def seconds(call: Callable[..., object], *arguments: object) -> float:
    began = time.monotonic()
    with pytest.raises((redis.RedisError, BrokerConnectionError)):
        call(*arguments)
    return time.monotonic() - began


def test_the_cache_gives_up_in_time_and_then_at_once(mute: str) -> None:
    cache = BriefCache(mute, {"OPTIONS": limits()})
    assert BROKER_TIMEOUT_S * 0.9 < seconds(cache.get, "a") < BROKER_TIMEOUT_S + 30
    assert seconds(cache.set, "a", 1) < BROKER_TIMEOUT_S * 0.5
    assert seconds(cache.add, "a", 1) < BROKER_TIMEOUT_S * 0.5
    assert seconds(client_of(mute).ping) > BROKER_TIMEOUT_S * 0.9, "a thread of its own may wait"


def test_after_a_pause_the_server_is_asked_again(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_redis, "SERVER", Breaker(pause_s=0.2))
    cache = BriefCache(mute, {"OPTIONS": limits()})
    seconds(cache.get, "a")
    time.sleep(0.3)
    assert seconds(cache.get, "a") > BROKER_TIMEOUT_S * 0.9


def test_a_hint_costs_one_wait_and_the_next_none(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = RedisPubSubChannelLayer(hosts=[{"address": mute, **limits_of_layers()}])
    monkeypatch.setattr(live, "get_channel_layer", lambda: layer)
    taken = []
    for _ in range(3):
        began = time.monotonic()
        live.announce(live.CLUSTER, 1)
        taken.append(time.monotonic() - began)
    assert taken[0] < BROKER_TIMEOUT_S + 30
    assert max(taken[1:]) < BROKER_TIMEOUT_S * 0.5


def test_a_layer_of_an_event_loop_gives_up_in_time(mute: str) -> None:
    layer = RedisPubSubChannelLayer(hosts=[{"address": mute, **limits_of_layers()}])
    began = time.monotonic()
    with pytest.raises(redis.RedisError):
        asyncio.run(layer.group_send("g", {}))
    assert time.monotonic() - began < BROKER_TIMEOUT_S + 30


def test_a_worker_s_push_and_look_give_up_in_time(mute: str) -> None:
    broker = PromptBroker(mute)
    began = time.monotonic()
    broker.push("q", "a", 1, 1)
    assert time.monotonic() - began < 2 * BROKER_TIMEOUT_S + 30
    consumer = broker.consume("q", timeout=10)
    began = time.monotonic()
    assert next(consumer) is None
    consumer.requeue([])
    assert time.monotonic() - began < 2 * BROKER_TIMEOUT_S + 30
