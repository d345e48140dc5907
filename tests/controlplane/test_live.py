"""The live contract: what a page holds, re-read at every nudge, is what a fresh reader gets."""

import asyncio
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
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import actions as inventory_actions
from flexmarl.controlplane.runs import actions, queries
from flexmarl.controlplane.telemetry import consumers, relay
from flexmarl.store import decisions, inbox, runs
from flexmarl.store.decisions import LogEntry, StoredDecision
from tests.support.controlplane import set_state

pytestmark = pytest.mark.django_db(transaction=True)
QUIET_S = 0.9
"""Longer than the relay's own reading interval: after it nothing more is on the way."""


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
    return queries.run_detail(queries.find_run(run_id))


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


def drive(run, hint: bool = True, **columns) -> None:
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
    if hint:
        decisions.notify_run(conn, run.no)


STORY = {
    "start": lambda run, actor: actions.act(actor, run, Verb.START),
    "queued": lambda run, actor: drive(run, status=RunStatus.QUEUED, reason_text="Needs 2 devices."),
    "running": lambda run, actor: drive(run, status=RunStatus.RUNNING),
    "step": lambda run, actor: drive(run, step=3, progress=Progress(step=3, max_steps=9, reward=0.5)),
    "step_without_hint": lambda run, actor: drive(run, hint=False, step=4, progress=Progress(step=4, max_steps=9)),
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
        STORY[name](queries.find_run(run.id), actor)

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


async def test_a_burst_of_hints_is_gathered(editor, make_run) -> None:
    run = await database_sync_to_async(make_run)(editor)
    await database_sync_to_async(set_state)(run, status="running")
    async with socket(editor) as communicator:
        page = Page(communicator, run.id)
        await subscribe(communicator, live.run_topic(run.id))
        await page.settle()
        before = page.nudges

        def burst() -> None:
            for step in range(40):
                drive(run, step=step, progress=Progress(step=step, max_steps=99))

        started = time.monotonic()
        await database_sync_to_async(burst)()
        seconds = time.monotonic() - started
        await page.settle()
        assert page.held["step"] == 39
        assert page.nudges - before <= 2 + seconds / relay.GATHER_S


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


async def test_cluster_changes_are_told(person) -> None:
    admin = await database_sync_to_async(person)("admin")
    async with socket(admin) as communicator:
        await subscribe(communicator, live.CLUSTER)
        await database_sync_to_async(inventory_actions.create_pool)(actor_of_user(admin), "gpu")
        assert await communicator.receive_nothing(timeout=0.2)  # a new pool changes no device
        run_less = {"subscribe": "not a list"}
        await communicator.send_json_to(run_less)
        assert await communicator.receive_nothing(timeout=0.1)


async def test_the_last_socket_closes_the_relays_connection(editor, make_run) -> None:
    run = await database_sync_to_async(make_run)(editor)

    def relay_sessions() -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'flexmarl.relay'"
        return store_connection().execute(query).fetchone()[0]

    async with socket(editor) as communicator:
        await subscribe(communicator, live.run_topic(run.id))
        for _ in range(50):
            if await database_sync_to_async(relay_sessions)() == 1:
                break
            await asyncio.sleep(0.02)
        assert await database_sync_to_async(relay_sessions)() == 1
    await asyncio.sleep(0.1)
    assert await database_sync_to_async(relay_sessions)() == 0
