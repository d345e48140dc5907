"""Hints as server-sent events: the same as at the socket, resumed by Last-Event-ID, for those who may listen."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from channels.db import database_sync_to_async
from django.test import AsyncClient

from flexmarl.controlplane.accounts.actions import create_token
from flexmarl.controlplane.accounts.models import User
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common import live
from flexmarl.controlplane.telemetry.live import stream
from tests.support.controlplane import set_state

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.asyncio]


@pytest.fixture
async def run(editor, make_run):
    found = await database_sync_to_async(make_run)(editor, "running")
    await database_sync_to_async(set_state)(found, seq=7)
    return found


@pytest.fixture
async def token(editor):
    return await database_sync_to_async(token_of)(editor)


def token_of(user) -> str:
    return create_token(actor_of_user(user), "stream", None)[1]


async def ask(token: str, topics: str, **headers: str):
    headers = {"Authorization": f"Bearer {token}", **headers}
    return await AsyncClient().get("/api/v1/stream", {"topics": topics}, headers=headers)


@asynccontextmanager
async def listening(token: str, topics: str, **headers: str):
    """Yield a function that returns the next event, as its lines."""
    answer = await ask(token, topics, **headers)
    assert answer.status_code == 200, answer.content
    assert answer["Content-Type"] == "text/event-stream"
    pieces = aiter(answer.streaming_content)

    async def following(timeout: float = 5.0) -> dict[str, str]:
        piece = (await asyncio.wait_for(anext(pieces), timeout)).decode()
        return dict(line.split(": ", 1) for line in piece.strip().splitlines())

    try:
        assert (await following())["retry"] == "1000"
        yield following
    finally:
        await pieces.aclose()
        await database_sync_to_async(answer.close)()  # as the server does


async def test_a_stream_tells_where_topics_are_and_each_change(run, token) -> None:
    topic = live.run_topic(run.id)
    async with listening(token, f"{topic},cluster") as following:
        first = [await following(), await following()]
        told = {json.loads(event["data"])["topic"]: json.loads(event["data"])["seq"] for event in first}
        assert told == {topic: 7, "cluster": 0}
        await database_sync_to_async(live.announce)(topic, 8)
        event = await following()
        assert event["event"] == "hint"
        assert json.loads(event["data"]) == {"topic": topic, "seq": 8}
        assert event["id"] == f"cluster@0,{topic}@8"


async def test_a_run_may_be_named_by_its_key(run, token) -> None:
    topic = live.run_topic(run.id)
    async with listening(token, f"run:{run.key},{topic}") as following:
        assert json.loads((await following())["data"]) == {"topic": topic, "seq": 7}


async def test_who_comes_back_is_told_only_what_moved(run, token) -> None:
    topic = live.run_topic(run.id)
    async with listening(token, topic, **{"Last-Event-ID": f"{topic}@7"}) as following:
        await database_sync_to_async(live.announce)(topic, 9)
        assert json.loads((await following())["data"])["seq"] == 9
    async with listening(token, topic, **{"Last-Event-ID": f"{topic}@3,nonsense,@x,a@b"}) as following:
        assert json.loads((await following())["data"])["seq"] == 7


async def test_a_hint_that_comes_late_takes_no_sequence_back(run, token) -> None:
    topic = live.run_topic(run.id)
    async with listening(token, topic) as following:
        assert json.loads((await following())["data"])["seq"] == 7
        for seq in (6, 7, 8):
            await database_sync_to_async(live.announce)(topic, seq)
        assert [json.loads((await following())["data"])["seq"] for _ in range(2)] == [7, 8]


async def test_a_quiet_stream_shows_that_it_lives_and_loses_nothing(run, token, monkeypatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.05)
    topic = live.run_topic(run.id)
    async with listening(token, topic) as following:
        await following()
        assert "" in await following()
        await database_sync_to_async(live.announce)(topic, 8)
        event = await following()
        while "data" not in event:
            event = await following()
        assert json.loads(event["data"])["seq"] == 8


async def test_a_hint_that_was_lost_is_made_up_for(run, token, monkeypatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.05)
    topic = f"run:{run.id}"
    async with listening(token, topic) as following:
        assert json.loads((await following())["data"]) == {"topic": topic, "seq": 7}
        await database_sync_to_async(set_state)(run, seq=9)  # and nobody tells
        while "data" not in (event := await following()):
            pass
        assert json.loads(event["data"]) == {"topic": topic, "seq": 9}


async def test_a_stream_ends_when_the_caller_may_no_longer_listen(run, token, editor, monkeypatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(stream, "REAUTHORISE_S", 0.0)
    async with listening(token, live.run_topic(run.id)) as following:
        await following()
        await database_sync_to_async(User.objects.filter(pk=editor.pk).update)(is_active=False)
        with pytest.raises(StopAsyncIteration):
            await to_the_end(following)


async def to_the_end(following) -> None:
    for _ in range(20):
        await following()


@pytest.mark.parametrize(
    ("topics", "status"), [("", 400), (",".join(f"run:{n}" for n in range(40)), 400), ("run:nobody", 404), ("x", 404)]
)
async def test_wrong_topics_are_refused(token, topics, status) -> None:
    answer = await ask(token, topics)
    assert answer.status_code == status
    assert answer["Content-Type"] == "application/problem+json"
    assert "run:<id>" in answer.content.decode(), "a legal topic is named"


async def test_strangers_hear_nothing(run, person) -> None:
    other = await database_sync_to_async(person)("editor", "olga", "elsewhere")
    text = await database_sync_to_async(token_of)(other)
    assert (await ask(text, live.run_topic(run.id))).status_code == 404
    assert (await AsyncClient().get("/api/v1/stream", {"topics": "cluster"})).status_code == 401


async def test_streams_of_a_caller_are_bounded_and_places_come_back(run, token, monkeypatch) -> None:
    monkeypatch.setattr(stream, "MAX_STREAMS", 1)
    topic = live.run_topic(run.id)
    async with listening(token, topic):
        refused = await ask(token, topic)
        assert refused.status_code == 429
        assert refused["Retry-After"]
    unread = await ask(token, topic)
    assert unread.status_code == 200
    await database_sync_to_async(unread.close)()
    async with listening(token, topic) as following:
        await following()


async def of_session(client: AsyncClient, path: str, **values: str):
    """Return the pieces of a stream that a browser's session opened; they are ended with the block around."""
    answer = await client.get(path, values)
    assert answer.status_code == 200, answer.content
    return aiter(answer.streaming_content)


def another_password(client: AsyncClient, user) -> None:
    user.set_password("another one entirely")
    user.save()


def sign_out(client: AsyncClient, user) -> None:
    client.logout()


@pytest.mark.parametrize("loss", [sign_out, another_password])
async def test_streams_of_a_session_end_with_it(run, editor, loss) -> None:
    client = AsyncClient()
    await database_sync_to_async(client.force_login)(editor)
    hints = await of_session(client, "/api/v1/stream", topics=live.run_topic(run.id))
    lines = await of_session(client, f"/api/v1/runs/{run.id}/logs", follow="true")
    assert (await anext(hints)).startswith(b"retry")
    assert (await anext(hints)).startswith(b"event: hint")
    waiting = asyncio.ensure_future(anext(lines, None))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await database_sync_to_async(loss)(client, editor)
    assert await asyncio.wait_for(anext(hints, None), 60) is None
    assert await asyncio.wait_for(waiting, 60) is None
