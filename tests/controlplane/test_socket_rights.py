"""Sockets end with the rights of those who opened them, and survive whatever is sent to them."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
import websockets
from channels.db import database_sync_to_async
from channels.testing import WebsocketCommunicator
from django.test import Client

from flexmarl.controlplane.accounts import actions as people
from flexmarl.controlplane.accounts.callers import Caller
from flexmarl.controlplane.accounts.models import ApiToken, Membership, User
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.asgi import application
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.brief_redis import Breaker
from flexmarl.controlplane.common.management.commands.serve import LARGEST_FRAME, Server, config_of
from flexmarl.controlplane.telemetry.live import consumers, stream
from flexmarl.launcher.processes import free_port
from flexmarl.store.control.heartbeat import Heartbeat

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.asyncio]
SOON_S = 5.0
"""Far below the time of the next periodic look."""


@asynccontextmanager
async def opened(path: str = "/ws/v1/", headers: tuple = ()):
    communicator = WebsocketCommunicator(application, path, headers=list(headers))
    connected, _ = await communicator.connect(timeout=5)
    assert connected
    try:
        yield communicator
    finally:
        await communicator.disconnect()


def ticket_of(user, token: ApiToken | None = None) -> str:
    return f"/ws/v1/?ticket={people.create_ticket(Caller(user.pk, token and token.pk))[0]}"


def token_of(user) -> ApiToken:
    return people.create_token(actor_of_user(user), "script")[0]


def cookie_of(user) -> tuple[Client, tuple]:
    client = Client()
    client.force_login(user)
    name, value = next((name, morsel.value) for name, morsel in client.cookies.items())
    return client, ((b"cookie", f"{name}={value}".encode()), (b"origin", b"http://testserver"))


async def subscribed(communicator, run) -> None:
    await communicator.send_json_to({"subscribe": [live.run_topic(run.id)]})
    assert (await communicator.receive_json_from())["topic"] == live.run_topic(run.id)


async def code_of(communicator, timeout: float = SOON_S) -> int:
    """Return the code it is closed with; messages before that are read."""
    while True:
        output = await communicator.receive_output(timeout)
        if output["type"] == "websocket.close":
            return output["code"]


def leave_project(user) -> None:
    Membership.objects.get(user=user, project__name="default").delete()


def retire(user) -> None:
    user = User.objects.get(pk=user.pk)
    user.is_active = False
    user.save()


async def test_who_loses_their_rights_is_disconnected_at_once(editor, make_run) -> None:
    run = await database_sync_to_async(make_run)(editor)
    async with opened(await database_sync_to_async(ticket_of)(editor)) as communicator:
        await subscribed(communicator, run)
        await database_sync_to_async(retire)(editor)
        assert await code_of(communicator) == consumers.NO_LONGER_ALLOWED


async def test_a_topic_of_a_project_that_they_left_is_dropped_and_others_stay(editor, make_run) -> None:
    run = await database_sync_to_async(make_run)(editor)
    async with opened(await database_sync_to_async(ticket_of)(editor)) as communicator:
        await subscribed(communicator, run)
        await database_sync_to_async(leave_project)(editor)
        told = await communicator.receive_json_from(SOON_S)
        assert told == {"error": f"You may no longer subscribe to {live.run_topic(run.id)}.",
                        "topic": live.run_topic(run.id)}  # fmt: skip
        await database_sync_to_async(live.announce)(live.run_topic(run.id), 99)
        assert await communicator.receive_nothing(timeout=0.3)
        await communicator.send_json_to({"subscribe": [live.run_topic(run.id)]})
        assert "error" in await communicator.receive_json_from()
        await communicator.send_json_to({"subscribe": [live.CLUSTER]})
        assert (await communicator.receive_json_from())["topic"] == live.CLUSTER


def revoke(user, token: ApiToken) -> None:
    people.revoke_token(actor_of_user(user), token.pk)


def expire(user, token: ApiToken) -> None:
    found = ApiToken.objects.get(pk=token.pk)
    found.expires_at = found.created_at
    found.save()


@pytest.mark.parametrize("loss", [revoke, expire])
async def test_a_socket_ends_with_its_token(editor, make_run, loss) -> None:
    run = await database_sync_to_async(make_run)(editor)
    token = await database_sync_to_async(token_of)(editor)
    async with opened(await database_sync_to_async(ticket_of)(editor, token)) as communicator:
        await subscribed(communicator, run)
        await database_sync_to_async(loss)(editor, token)
        assert await code_of(communicator) == consumers.UNAUTHENTICATED


def sign_out(client: Client, user) -> None:
    client.logout()


def another_password(client: Client, user) -> None:
    user = User.objects.get(pk=user.pk)
    user.set_password("another one entirely")
    user.save()


@pytest.mark.parametrize("loss", [sign_out, another_password])
async def test_a_page_s_socket_ends_with_its_session(editor, make_run, loss) -> None:
    run = await database_sync_to_async(make_run)(editor)
    client, headers = await database_sync_to_async(cookie_of)(editor)
    _, others = await database_sync_to_async(cookie_of)(editor)
    async with opened(headers=headers) as communicator, opened(headers=others) as other:
        await subscribed(communicator, run)
        await subscribed(other, run)
        await database_sync_to_async(loss)(client, editor)
        assert await code_of(communicator) == consumers.UNAUTHENTICATED
        if loss is sign_out:
            assert await other.receive_nothing(timeout=0.3)


def ticket_of_session(client: Client) -> str:
    return f"/ws/v1/?ticket={client.post('/api/v1/ws-tickets').json()['ticket']}"


@pytest.mark.parametrize("loss", [sign_out, another_password])
async def test_a_socket_of_a_session_s_ticket_ends_with_that_session(editor, make_run, loss) -> None:
    run = await database_sync_to_async(make_run)(editor)
    client, _ = await database_sync_to_async(cookie_of)(editor)
    async with opened(await database_sync_to_async(ticket_of_session)(client)) as communicator:
        await subscribed(communicator, run)
        await database_sync_to_async(loss)(client, editor)
        assert await code_of(communicator) == consumers.UNAUTHENTICATED


async def test_a_look_that_fails_ends_the_socket_and_not_the_looks(editor, make_run, monkeypatch) -> None:
    async def broken(caller, topics) -> None:
        raise RuntimeError("whatever it is")

    monkeypatch.setattr(consumers, "REAUTHORISE_S", 1.0)
    run = await database_sync_to_async(make_run)(editor)
    async with opened(await database_sync_to_async(ticket_of)(editor)) as communicator:
        await subscribed(communicator, run)
        monkeypatch.setattr(consumers, "_look", broken)
        assert await code_of(communicator) == consumers.TRY_LATER


async def test_rights_are_looked_at_each_minute_or_more_often() -> None:
    assert consumers.REAUTHORISE_S <= 60
    assert stream.REAUTHORISE_S + stream.HEARTBEAT_S <= 60, "a stream looks when it wakes"


async def test_a_change_that_nobody_announced_is_found_by_the_clock(editor, make_run, monkeypatch) -> None:
    monkeypatch.setattr(consumers, "REAUTHORISE_S", 1.0)
    run = await database_sync_to_async(make_run)(editor)
    async with opened(await database_sync_to_async(ticket_of)(editor)) as communicator:
        await subscribed(communicator, run)
        await database_sync_to_async(User.objects.filter(pk=editor.pk).update)(is_active=False)
        assert await code_of(communicator) == consumers.NO_LONGER_ALLOWED


async def test_rights_that_cannot_be_looked_up_end_the_socket(editor, make_run, monkeypatch) -> None:
    from django.db import OperationalError

    async def away(caller, topics) -> None:
        raise OperationalError("away")

    run = await database_sync_to_async(make_run)(editor)
    async with opened(await database_sync_to_async(ticket_of)(editor)) as communicator:
        await subscribed(communicator, run)
        monkeypatch.setattr(consumers, "_look", away)
        await database_sync_to_async(live.announce_rights)(str(editor.pk))
        assert await code_of(communicator) == consumers.TRY_LATER


async def test_rights_of_others_cost_nothing(editor, make_run, monkeypatch) -> None:
    run = await database_sync_to_async(make_run)(editor)
    async with opened(await database_sync_to_async(ticket_of)(editor)) as communicator:
        await subscribed(communicator, run)
        looks = []
        monkeypatch.setattr(consumers.LiveConsumer, "_check", looks.append)
        await database_sync_to_async(live.announce_rights)("somebody else")
        assert await communicator.receive_nothing(timeout=0.3)
        assert looks == []


@pytest.mark.parametrize(("frame", "code"), [
    ({"text": "{"}, consumers.MALFORMED), ({"text": ""}, consumers.MALFORMED),
    ({"text": "[" * 50_000}, consumers.MALFORMED), ({"bytes": b"\x00\xff"}, consumers.BINARY),
    ({"bytes": b"{}"}, consumers.BINARY), ({"text": '"' + "x" * consumers.LARGEST_MESSAGE + '"'}, consumers.TOO_LARGE),
])  # fmt: skip
async def test_a_frame_that_is_no_message_closes_with_its_code(editor, frame, code) -> None:
    async with opened(await database_sync_to_async(ticket_of)(editor)) as communicator:
        await communicator.send_input({"type": "websocket.receive", **frame})
        assert await code_of(communicator) == code


@pytest.mark.parametrize("content", [
    [], 3, None, "text", {"subscribe": {"a": 1}}, {"subscribe": [1, None, []]},
    {"subscribe": ["run:\x00"]}, {"subscribe": ["run:" + "9" * 5000]}, {"subscribe": ["cluster"] * 1000},
])  # fmt: skip
async def test_a_message_that_makes_no_sense_costs_nothing(editor, make_run, content) -> None:
    run = await database_sync_to_async(make_run)(editor)
    async with opened(await database_sync_to_async(ticket_of)(editor)) as communicator:
        await communicator.send_json_to(content)
        while not await communicator.receive_nothing(timeout=0.2):
            assert "error" in await communicator.receive_json_from()
        await subscribed(communicator, run)


async def test_a_broker_that_is_away_says_come_again(editor, make_run, monkeypatch) -> None:
    import redis
    from channels.layers import get_channel_layer

    async def away(*_: object) -> None:
        raise redis.TimeoutError("away")

    monkeypatch.setattr(live, "SERVER", Breaker())
    run = await database_sync_to_async(make_run)(editor)
    async with opened(await database_sync_to_async(ticket_of)(editor)) as communicator:
        monkeypatch.setattr(get_channel_layer(), "group_add", away)
        await communicator.send_json_to({"subscribe": [live.run_topic(run.id)]})
        assert await code_of(communicator) == consumers.TRY_LATER


@asynccontextmanager
async def served():
    """The application behind the server that `manage.py serve` starts."""
    port = free_port()
    server = Server(config_of("127.0.0.1", port), Heartbeat("web"))
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.05)
        yield f"ws://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


async def closed_with(socket) -> int:
    await asyncio.wait_for(socket.wait_closed(), SOON_S)
    return socket.close_code


async def test_over_a_real_server(editor, make_run) -> None:
    run = await database_sync_to_async(make_run)(editor)
    codes = {}
    frames = {"text": "{", "binary": b"\x00", "large": "x" * (LARGEST_FRAME + 1)}
    async with served() as url:
        for name, frame in frames.items():
            async with websockets.connect(url + await database_sync_to_async(ticket_of)(editor)) as socket:
                await socket.send(frame)
                codes[name] = await closed_with(socket)
        assert codes == {"text": 1007, "binary": 1003, "large": 1009}
        async with websockets.connect(url + await database_sync_to_async(ticket_of)(editor)) as socket:
            await socket.send(json.dumps({"subscribe": [live.run_topic(run.id)]}))
            assert json.loads(await socket.recv())["topic"] == live.run_topic(run.id)
            await database_sync_to_async(leave_project)(editor)
            assert json.loads(await asyncio.wait_for(socket.recv(), SOON_S))["error"].startswith("You may no longer")
            await database_sync_to_async(retire)(editor)
            assert await closed_with(socket) == consumers.NO_LONGER_ALLOWED
