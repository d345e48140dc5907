"""Pushes reach a real broker and a node over HTTP, and nothing waits for those that are away."""

import asyncio
import threading
import time
from collections.abc import Iterator

import dramatiq
import pytest
import redis
from aiohttp import web
from dramatiq.brokers.redis import RedisBroker

from flexmarl.contracts.wake_words import held_word, node_word, wake_channel
from flexmarl.controlplane.runs.driver.announcing import AnnouncingThread
from flexmarl.controlplane.runs.driver.pushing import BrokerPush, NodePush, Pusher
from flexmarl.launcher.processes import free_port
from workers.broker import PromptBroker


class FakeNode(threading.Thread):
    """Answers `POST /v1/commands` like a node, and notes what it got."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.got: list[tuple[str, dict]] = []
        self.address = ""
        self.ready = threading.Event()
        self.loop = asyncio.new_event_loop()

    def run(self) -> None:
        async def push(request: web.Request) -> web.Response:
            self.got.append((request.headers["Authorization"], await request.json()))
            return web.Response(status=202)

        async def start() -> web.AppRunner:
            app = web.Application()
            app.add_routes([web.post("/v1/commands", push)])
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.address = f"127.0.0.1:{runner.addresses[0][1]}"
            self.ready.set()
            return runner

        runner = self.loop.run_until_complete(start())
        self.loop.run_forever()
        self.loop.run_until_complete(runner.cleanup())

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.join(60)


@pytest.fixture
def node() -> Iterator[FakeNode]:
    node = FakeNode()
    node.start()
    assert node.ready.wait(60)
    yield node
    node.stop()


def eventually(done, timeout_s: float = 90.0) -> None:
    until = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.services
def test_a_broker_push_calls_the_actor_of_that_name(redis_url: str) -> None:
    called = []
    broker = RedisBroker(url=redis_url, middleware=[])
    dramatiq.actor(broker=broker, actor_name="play_groups", queue_name="rollout.default")(
        lambda run_id, no: called.append((run_id, no))
    )
    pusher = Pusher(redis_url, "key")
    pusher.start()
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    try:
        pusher.to_broker(BrokerPush("rollout.default", "play_groups", 7, 3))
        eventually(lambda: called == [(7, 3)])
    finally:
        worker.stop()
        pusher.stop()
        broker.close()


def test_node_pushes_carry_the_cluster_key_and_one_away_delays_nobody(node: FakeNode) -> None:
    pusher = Pusher("redis://127.0.0.1:1/0", "secret")
    pusher.start()
    try:
        eventually(pusher._nodes._loop.is_running)
        for no in range(50):
            pusher.to_node(NodePush(f"127.0.0.1:{free_port()}", 1, no, 1))
        began = time.monotonic()
        pusher.to_node(NodePush(node.address, 5, 9, 2))
        eventually(lambda: node.got == [("Bearer secret", {"run_id": 5, "no": 9, "lease_id": 2})])
        assert time.monotonic() - began < 20
    finally:
        pusher.stop()


def test_a_broker_that_is_away_never_blocks_the_loop() -> None:
    pusher = Pusher("redis://127.0.0.1:1/0", "secret")
    pusher.start()
    began = time.monotonic()
    for no in range(20_000):
        pusher.to_broker(BrokerPush("rollout.default", "play_groups", 1, no))
    pusher.stop()
    assert time.monotonic() - began < 30


@pytest.mark.services
def test_rollout_workers_are_told_to_look_at_what_is_held(redis_url: str) -> None:
    broker, told, pusher = PromptBroker(redis_url), threading.Event(), Pusher(redis_url, "key")
    broker.hints.when(held_word("far"), told.set)
    broker.hints.start()
    pusher.start()
    try:
        assert told.wait(30), "whoever begins to listen may have missed one"
        told.clear()
        pusher.to_players("far")
        assert told.wait(30)
    finally:
        pusher.stop()
        broker.hints.stop()
        broker.close()


@pytest.mark.services
def test_a_node_without_an_address_is_told_which_child_to_look_for(redis_url: str) -> None:
    pusher = Pusher(redis_url, "key")
    with redis.Redis.from_url(redis_url) as client, client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(wake_channel(node_word("far-1")))
        assert channel.get_message(timeout=30) is None, "that it listens"
        pusher.start()
        try:
            pusher.to_node(NodePush("", 5, 9, 2, node="far-1"))
            assert (channel.get_message(timeout=30) or {}).get("data") == b"2"
        finally:
            pusher.stop()


@pytest.mark.services
def test_messages_wait_in_the_queue_of_their_name(redis_url: str) -> None:
    pusher = Pusher(redis_url, "key")
    pusher.start()
    pusher.to_broker(BrokerPush("device.box.cpu0", "host_lease", 1, 2))
    pusher.stop()
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen("dramatiq:device.box.cpu0") == 1


def test_hints_are_merged_per_run_and_a_failure_stops_nothing() -> None:
    told, failures = [], [OSError("pages away")]

    def tell(run_id: int, seq: int, moved: bool) -> None:
        if failures:
            raise failures.pop()
        told.append((run_id, seq, moved))

    announcer = AnnouncingThread(tell)
    announcer.changed(1, 1)
    announcer.start()
    eventually(lambda: not failures)
    for seq in range(2, 200):
        announcer.changed(1, seq, moved=seq == 50)
        announcer.changed(2, seq)
    eventually(lambda: len(told) >= 2)
    announcer.stop()
    assert (1, 199, True) in told
    assert (2, 199, False) in told
    assert len(told) < 10
