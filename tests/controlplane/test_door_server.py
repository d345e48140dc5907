"""Requests of nodes in front of Django: a caller is looked at before its body is read, and believed for a second."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.db import connection

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.database import NODE_OPERATIONS
from flexmarl.controlplane.common.store import database_url
from flexmarl.controlplane.inventory import admission, node_door, node_tokens
from flexmarl.controlplane.inventory.door_server import NEWS, DoorServer
from flexmarl.controlplane.inventory.models import NodeToken
from flexmarl.controlplane.inventory.node_tokens import TokenRefused
from flexmarl.store import node_wire

pytestmark = pytest.mark.django_db(transaction=True)
ASK = node_wire.encode({"node": "far-1"})


async def nothing(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b"inner"})


@pytest.fixture
def token() -> str:
    return node_tokens.create(Actor.system(), "far-1", "far")[1]


@pytest.fixture
def server() -> Iterator[DoorServer]:
    yield DoorServer(nothing)
    end_sessions()


def request(server: Any, path: str, token: str, method: str = "POST", query: bytes = b"") -> ApplicationCommunicator:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": headers}
    return ApplicationCommunicator(server, scope)


async def answer(asked: ApplicationCommunicator, body: bytes | None = ASK) -> tuple[int, bytes]:
    """Return what is answered; without a body, before any is sent."""
    if body is not None:
        await asked.send_input({"type": "http.request", "body": body})
    start = await asked.receive_output(30)
    return start["status"], (await asked.receive_output(30))["body"]


async def asked(server: Any, token: str, body: bytes | None = ASK, name: str = "nodes.devices_of") -> tuple[int, bytes]:
    return await answer(request(server, NODE_OPERATIONS + name, token), body)


def test_an_operation_is_done_and_everything_else_goes_on(server: DoorServer, token: str) -> None:
    async def story() -> None:
        assert await asked(server, token) == (200, node_wire.encode([]))
        status, said = await asked(server, token, node_wire.encode({"node": "far-2"}))
        assert (status, json.loads(said)["code"]) == (403, "not_its_own")
        assert (await answer(request(server, f"{NODE_OPERATIONS}nodes.devices_of", token, "GET"), None))[0] == 405
        for path in ("/nodes/hello", "/nodes/operation", "/api/v1/nodes"):
            assert await answer(request(server, path, token)) == (418, b"inner")

    asyncio.run(story())


def test_strangers_are_refused_before_a_byte_of_theirs_is_read(server: DoorServer, token: str) -> None:
    async def story() -> None:
        for wrong in ("", "fmn_abc.def", f"{token}x"):
            status, said = await asked(server, wrong, body=None)
            assert (status, json.loads(said)["code"]) == (401, "not_admitted")
        assert (await answer(request(server, NEWS, "fmn_abc.def", "GET", b"role=node"), None))[0] == 401

    asyncio.run(story())


def test_bodies_are_bounded_and_callers_may_go(server: DoorServer, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_door, "LARGEST_BYTES", 100)

    async def story() -> None:
        assert (await asked(server, token, b"x" * 101))[0] == 413
        pieces = request(server, f"{NODE_OPERATIONS}nodes.devices_of", token)
        await pieces.send_input({"type": "http.request", "body": ASK[:5], "more_body": True})
        assert (await answer(pieces, ASK[5:]))[0] == 200
        gone = request(server, f"{NODE_OPERATIONS}nodes.devices_of", token)
        await gone.send_input({"type": "http.request", "body": ASK[:5], "more_body": True})
        await gone.send_input({"type": "http.disconnect"})
        await gone.wait(30)
        assert gone.output_queue.empty()

    asyncio.run(story())


def test_a_revocation_holds_within_a_second(server: DoorServer, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        assert (await asked(server, token))[0] == 200
        await sync_to_async(revoke)()
        assert (await asked(server, token))[0] == 200, "it was looked at just now"
        monkeypatch.setattr(admission, "BELIEVED_S", 0.0)
        assert (await asked(server, token))[0] == 401

    asyncio.run(story())


@asynccontextmanager
async def streaming(server: Any, token: str, role: str) -> AsyncIterator[ApplicationCommunicator]:
    stream = request(server, NEWS, token, "GET", f"role={role}".encode())
    await stream.send_input({"type": "http.request", "body": b""})
    assert (await stream.receive_output(30))["status"] == 200
    yield stream


def test_news_say_that_they_live_and_that_a_token_holds_no_more(server: DoorServer, token: str) -> None:
    async def story() -> None:
        assert (await answer(request(server, NEWS, token, "GET", b"role=cook")))[0] == 422
        async with streaming(server, token, "rollout") as left:
            assert (await left.receive_output(30))["body"] == b"\n"
            await left.send_input({"type": "http.disconnect"})
            await left.wait(30)
        async with streaming(server, token, "rollout") as stream:
            assert (await stream.receive_output(30))["body"] == b"\n"
            assert (await stream.receive_output(30))["body"] == b"\n", "nothing waits, and it lives"
            await sync_to_async(revoke)()
            said = json.loads((await stream.receive_output(30))["body"])
            assert "revoked" in said["refused"]
            assert await stream.receive_output(30) == {"type": "http.response.body", "body": b""}

    asyncio.run(story())


def test_all_that_a_node_asks_shares_a_check_of_its_token(
    server: DoorServer, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[list[str]] = []
    check = node_tokens.check_all

    def counted(headers: Sequence[str]) -> list[NodeToken | TokenRefused]:
        checked.append(list(headers))
        return check(headers)

    monkeypatch.setattr(node_tokens, "check_all", counted)
    monkeypatch.setattr(admission, "BELIEVED_S", 3600.0)

    async def story() -> None:
        assert (await asked(server, token))[0] == 200
        async with streaming(server, token, "rollout") as first, streaming(server, token, "device") as second:
            for _ in range(2):  # the second line comes behind a look
                assert (await first.receive_output(30))["body"] == b"\n"
                assert (await second.receive_output(30))["body"] == b"\n"
            assert len(checked) > 1, "it is checked at each look"
            assert {len(headers) for headers in checked} == {1}, "once for both streams"
            looked = len(checked)
            assert (await asked(server, token))[0] == 200
            assert len(checked) - looked <= 1, "an operation asks for no check of its own"
            for stream in (first, second):
                await stream.send_input({"type": "http.disconnect"})
                await stream.wait(30)

    asyncio.run(story())


def test_a_broken_connection_is_replaced(server: DoorServer, token: str) -> None:
    async def story() -> None:
        assert (await asked(server, token))[0] == 200
        assert await sync_to_async(end_sessions)()
        broken = [(await asked(server, token))[0] for _ in range(2)]
        assert broken == [503, 200], "one is told to come again, as of a database that is away"

    asyncio.run(story())


def revoke() -> None:
    node_tokens.revoke(Actor.system(), NodeToken.objects.get().id)
    connection.close()


def end_sessions() -> int:
    """End the connections of nodes' work, as a database does that goes down; return how many there were."""
    with psycopg.connect(database_url(), autocommit=True) as conn:
        return conn.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'flexmarl.nodes'"
            " AND datname = current_database()"
        ).rowcount
