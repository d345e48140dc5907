"""The live contract: what a page holds, re-read at every nudge, is what a fresh reader gets."""

import time
from contextlib import asynccontextmanager

import pytest
from channels.db import database_sync_to_async
from channels.testing import WebsocketCommunicator

from flexmarl.contracts.events import TimerFired, Verb
from flexmarl.contracts.live import Progress
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.controlplane.accounts.models import User
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.brief_redis import Breaker
from flexmarl.controlplane.common.preconditions import any_version
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import actions as inventory_actions
from flexmarl.controlplane.runs import actions, queries
from flexmarl.controlplane.runs.driver.pages import Pages
from flexmarl.controlplane.telemetry.live import consumers
from flexmarl.store.control import decisions, inbox, nodes, runs
from flexmarl.store.control.decisions import LogEntry, StoredDecision
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts

pytestmark = pytest.mark.django_db(transaction=True)
QUIET_S = 0.2
"""After it nothing more is on the way: hints travel inside this process."""


@asynccontextmanager
async def socket(user):
    communicator = WebsocketCommunicator(consumers.LiveConsumer.as_asgi(), "/ws/v1/")
    communicator.scope["user"] = user
    connected, _ = await communicator.connect()
    assert connected
    try:
        yield communicator
    finally:
        await communicator.disconnect()


async def subscribe(communicator, topic: str) -> int:
    await communicator.send_json_to({"subscribe": [topic]})
    answer = await communicator.receive_json_from()
    assert answer["topic"] == topic
    return answer["seq"]


def fetch(run_id):
    return queries.run_detail(queries.find_run(Actor.system(), run_id))


class Page:
    """What the browser does: read once, then again at every nudge."""

    def __init__(self, communicator, run_id) -> None:
        self.communicator, self.run_id = communicator, run_id
        self.nudges = 0

    async def read(self) -> None:
        self.held = await database_sync_to_async(fetch)(self.run_id)

    async def settle(self) -> None:
        """Follow nudges until none comes any more."""
        while not await self.communicator.receive_nothing(timeout=QUIET_S):
            message = await self.communicator.receive_json_from()
            assert set(message) == {"topic", "seq"}
            self.nudges += 1
            await self.read()


def drive(run, **columns) -> None:
    """Commit a decision as a driver does, and hint."""
    conn = store_connection()
    lease = next(lease for lease in runs.claim_runs(conn, f"t{time.monotonic()}", 0.0) if lease.run_id == run.no)
    state = runs.load_run(conn, run.no)
    taken = inbox.take_events(conn, run.no)
    entries = [LogEntry(state.seq + i + 1, time.time(), t.event, t.producer_key) for i, t in enumerate(taken)]
    entries = entries or [LogEntry(state.seq + 1, time.time(), TimerFired())]
    chosen = {
        "status": state.status, "reason": RunReason.NONE, "reason_text": "", "epoch": state.epoch, "step": state.step,
        "progress": Progress(), "deadline": None, **columns,
    }  # fmt: skip
    decisions.append(conn, lease, StoredDecision(entries=entries, **chosen))
    Pages().announce(run.no, entries[-1].seq, moved=chosen["status"] != state.status)


STORY = {
    "start": lambda run, actor: actions.act(actor, run, Verb.START),
    "queued": lambda run, actor: drive(run, status=RunStatus.QUEUED, reason_text="Needs 2 devices."),
    "running": lambda run, actor: drive(run, status=RunStatus.RUNNING),
    "step": lambda run, actor: drive(run, step=3, progress=Progress(step=3, max_steps=9, reward=0.5)),
    "rename": lambda run, actor: actions.update_run(actor, run, name="Another name"),
    "pause": lambda run, actor: actions.act(actor, run, Verb.PAUSE),
    "pausing": lambda run, actor: drive(run, status=RunStatus.PAUSING),
    "paused": lambda run, actor: drive(run, status=RunStatus.PAUSED),
    "kill": lambda run, actor: actions.act(actor, run, Verb.KILL),
    "killed": lambda run, actor: drive(run, status=RunStatus.KILLED),
}


async def test_state_and_nudges_equal_a_fresh_read(editor, make_run) -> None:
    run = await database_sync_to_async(make_run)(editor)
    actor = actor_of_user(editor)

    def happen(name: str) -> None:
        STORY[name](queries.find_run(actor, run.id), actor)

    async with socket(editor) as communicator:
        page = Page(communicator, run.id)
        await subscribe(communicator, live.run_topic(run.id))
        await page.read()
        for name in STORY:
            before = page.nudges
            await database_sync_to_async(happen)(name)
            await page.settle()
            assert page.held == await database_sync_to_async(fetch)(run.id), name
            assert page.nudges > before, name
    assert page.held["status"] == "killed"


async def test_strangers_are_not_heard(make_run, editor) -> None:
    from django.contrib.auth.models import AnonymousUser

    communicator = WebsocketCommunicator(consumers.LiveConsumer.as_asgi(), "/ws/v1/")
    communicator.scope["user"] = AnonymousUser()
    await communicator.connect()
    assert (await communicator.receive_output())["code"] == consumers.UNAUTHENTICATED


async def test_who_loses_their_role_loses_the_socket(editor, make_run, monkeypatch) -> None:
    run = await database_sync_to_async(make_run)(editor)
    monkeypatch.setattr(consumers, "REAUTHORISE_S", 0.0)
    async with socket(editor) as communicator:
        await subscribe(communicator, live.run_topic(run.id))
        await database_sync_to_async(User.objects.filter(pk=editor.pk).update)(is_active=False)
        await database_sync_to_async(live.announce)(live.run_topic(run.id), 1)
        assert (await communicator.receive_output())["code"] == consumers.NO_LONGER_ALLOWED


@pytest.mark.parametrize("topic", ["run:nobody", "run:", "pool:x", "run:00000000-0000-7000-8000-000000000000"])
async def test_an_unknown_topic_is_refused(editor, topic) -> None:
    async with socket(editor) as communicator:
        await communicator.send_json_to({"subscribe": [topic]})
        assert "error" in await communicator.receive_json_from()


def register_box() -> None:
    node = NodeFacts("box", "127.0.0.1:1", "i", "0")
    nodes.register_node(store_connection(), node, [DeviceFacts("box.cpu0", "cpu", 0)])


async def test_the_cluster_topic_tells_cordons_and_moved_runs(person, make_run) -> None:
    admin = await database_sync_to_async(person)("cluster_admin")
    run = await database_sync_to_async(make_run)(admin)
    await database_sync_to_async(register_box)()
    async with socket(admin) as communicator:
        await subscribe(communicator, live.CLUSTER)
        await database_sync_to_async(inventory_actions.cordon)(actor_of_user(admin), "device", "box.cpu0", any_version)
        assert (await communicator.receive_json_from())["topic"] == live.CLUSTER
        await database_sync_to_async(actions.act)(actor_of_user(admin), run, Verb.START)
        await database_sync_to_async(drive)(run, status=RunStatus.QUEUED)
        assert (await communicator.receive_json_from())["topic"] == live.CLUSTER
        assert await communicator.receive_nothing(timeout=QUIET_S)


async def test_an_unsubscribed_socket_hears_nothing(editor, make_run) -> None:
    run = await database_sync_to_async(make_run)(editor)
    topic = live.run_topic(run.id)
    async with socket(editor) as communicator:
        await subscribe(communicator, topic)
        await communicator.send_json_to({"unsubscribe": [topic]})
        await communicator.send_json_to({"subscribe": "not a list"})
        assert await communicator.receive_nothing(timeout=QUIET_S)
        await database_sync_to_async(live.announce)(topic, 1)
        assert await communicator.receive_nothing(timeout=QUIET_S)


async def test_a_channel_layer_that_is_away_stops_no_action(editor, make_run, monkeypatch) -> None:
    def away() -> None:
        raise ConnectionError("away")

    run = await database_sync_to_async(make_run)(editor)
    monkeypatch.setattr(live, "SERVER", Breaker())
    monkeypatch.setattr(live, "async_to_sync", lambda call: lambda *args: away())
    await database_sync_to_async(actions.act)(actor_of_user(editor), run, Verb.START)
    assert (await database_sync_to_async(fetch)(run.id))["pending_verb"] == "start"
