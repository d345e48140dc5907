"""How soon an idle worker sees a message, hinted or not, and that a full one keeps its messages."""

import threading
import time
from collections.abc import Iterator

import dramatiq
import pytest
import redis
from dramatiq import Consumer
from dramatiq.errors import ConnectionClosed
from dramatiq.worker import Worker

from flexmarl.contracts.wake_words import wake_channel
from workers.broker import HEARTBEAT_MS, POLL_MS, BrokerHeartbeat, HintedConsumer, PromptBroker

pytestmark = pytest.mark.services

QUEUE = "rollout.test"


class Bench:
    def __init__(self, url: str) -> None:
        self.seen: list[tuple[int, float]] = []
        self.hold_s = 0.0
        self.broker = PromptBroker(url)
        self.client = redis.Redis.from_url(url)

        def play(run_id: int, no: int) -> None:
            self.seen.append((no, time.monotonic()))
            time.sleep(self.hold_s)

        dramatiq.actor(broker=self.broker, actor_name="play_groups", queue_name="rollout")(play)
        self.worker = Worker(self.broker, queues={QUEUE}, worker_timeout=POLL_MS, worker_threads=1)
        self.worker.queue_prefetch = 1
        self.worker.start()
        self.broker.declare_queue(QUEUE)
        self.broker.hints.start()
        self.heartbeat = BrokerHeartbeat(self.broker)
        self.heartbeat.start()

    def send(self, no: int, hint: bool) -> float:
        sent = time.monotonic()
        message = dramatiq.Message(queue_name=QUEUE, actor_name="play_groups", args=(1, no), kwargs={}, options={})
        self.broker.enqueue(message)
        if hint:
            self.client.publish(wake_channel(QUEUE), "")
        return sent

    def delay(self, no: int, hint: bool) -> float:
        sent = self.send(no, hint)
        while not any(seen == no for seen, _ in self.seen):
            assert time.monotonic() - sent < 60
            time.sleep(0.001)
        return next(at for seen, at in self.seen if seen == no) - sent


@pytest.fixture
def bench(redis_url: str) -> Iterator[Bench]:
    made = Bench(redis_url)
    yield made
    made.heartbeat.stop()
    made.broker.hints.stop()
    made.worker.stop(timeout=3000)


def test_a_hint_wakes_an_idle_worker_and_a_lost_one_costs_a_poll(bench):
    time.sleep(2 * POLL_MS / 1000)
    delays = []
    for no in range(11):
        delays.append(bench.delay(no, hint=True))
        time.sleep(0.05)  # idle again: what follows an answer at once would be seen without a hint
    hinted = sorted(delays)
    print(f"\nidle pick-up: median {hinted[5] * 1e3:.1f} ms, slowest {hinted[-1] * 1e3:.1f} ms")
    assert hinted[5] < POLL_MS / 1000 / 4
    assert bench.delay(100, hint=False) < 3 * POLL_MS / 1000


def test_losing_everything_in_redis_leaves_a_working_queue(bench):
    bench.delay(0, hint=True)
    bench.client.flushall()
    bench.client.script_flush()
    bench.delay(1, hint=True)


def test_a_broker_that_is_away_stops_no_thread_of_the_worker():
    """Dramatiq would sleep for seconds on the thread; what is not acknowledged comes again, which is harmless."""

    class Away(Consumer):
        def __next__(self):
            raise ConnectionClosed(redis.ConnectionError("refused"))

        def ack(self, message):
            raise ConnectionClosed(redis.ConnectionError("refused"))

    consumer = HintedConsumer(Away(), threading.Event(), POLL_MS)
    assert next(consumer) is None
    consumer.ack(None)


def test_a_busy_worker_keeps_its_message_beyond_the_heartbeat(bench, redis_url):
    """A worker at capacity fetches nothing; without its heartbeat others would take its message away."""
    bench.hold_s = HEARTBEAT_MS / 1000 + 2
    bench.delay(0, hint=True)
    other = PromptBroker(redis_url).consume(QUEUE, timeout=50)
    until = time.monotonic() + HEARTBEAT_MS / 1000 + 1
    while time.monotonic() < until:
        assert next(other) is None
    assert [no for no, _ in bench.seen] == [0]
