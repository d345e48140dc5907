"""What nodes with tokens cost does not grow with their number, as far as statements and wake-ups go.

A control plane that asks the database once for each node is seen here at sixty of them.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
from django.db import connection

from flexmarl.contracts.wake_words import node_word, wake_channel
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.database import NODE_OPERATIONS
from flexmarl.controlplane.common.store import database_url, store_connection
from flexmarl.controlplane.inventory import node_tokens
from flexmarl.controlplane.inventory.door_server import NEWS, DoorServer
from flexmarl.controlplane.inventory.news_board import LOOK_S, NewsBoard, Words
from flexmarl.store import node_wire
from flexmarl.store.control import nodes
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from flexmarl.store.control.process_heartbeats import ProcessFacts
from tests.controlplane.test_door_server import answer, nothing, request

pytestmark = pytest.mark.django_db(transaction=True)
FEW, MANY = 3, 60
LOOKS = 3
Tokens = dict[str, str]


@pytest.fixture
def server() -> Iterator[DoorServer]:
    yield DoorServer(nothing)
    with psycopg.connect(database_url(), autocommit=True) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'flexmarl.nodes'"
            " AND datname = current_database()"
        )


@pytest.fixture
def tokens() -> Iterator[Tokens]:
    """Sixty nodes of three devices each; name -> the token's text."""
    made = {}
    for number in range(MANY):
        name = f"host-{number}"
        made[name] = node_tokens.create(Actor.system(), name, name)[1]
        devices = [DeviceFacts(f"{name}.cuda{i}", "cuda", i, pool=name) for i in range(3)]
        nodes.register_node(store_connection(), NodeFacts(name, "", "life", "0"), devices)
    connection.close()
    yield made
    for table, column in (("process_heartbeat", "node"), ("device", "node"), ("node", "name")):
        store_connection().execute(f"DELETE FROM store.{table} WHERE {column} LIKE 'host-%'".encode())


@contextmanager
def statements() -> Iterator[list[str]]:
    """Yield a list that receives each statement of every connection of this process."""
    found: list[str] = []
    execute = psycopg.Cursor.execute

    def one(cursor: psycopg.Cursor[Any], query: Any, *args: Any, **options: Any) -> Any:
        found.append(" ".join(str(query).split())[:160])
        return execute(cursor, query, *args, **options)

    with patch.object(psycopg.Cursor, "execute", one):
        yield found


def asks(name: str) -> dict[str, dict[str, Any]]:
    """What the processes of a host repeat by the clock."""
    devices = {f"{name}.cuda{i}": {"use": 0.5} for i in range(3)}
    process = ProcessFacts("node", name, f"node:{name}/1", 1, 0.0)
    return {
        "node_beats.beat": {"node": name, "incarnation": "life"},
        "nodes.put_load": {"name": name, "incarnation": "life", "load": {"cpu_share": 0.25}, "devices": devices},
        "process_heartbeats.put": {"process": process, "stalled_loop": "", "stalled_s": 0.0},
    }


async def ask_all(server: Any, tokens: Tokens) -> None:
    """Let every node ask for each operation at the same time."""

    async def one(token: str, name: str, arguments: dict[str, Any]) -> None:
        asked = request(server, NODE_OPERATIONS + name, token)
        assert (await answer(asked, node_wire.encode(arguments)))[0] == 200

    each = [(token, name, said) for node, token in tokens.items() for name, said in asks(node).items()]
    await asyncio.gather(*(one(*call) for call in each))


def test_what_nodes_repeat_takes_as_many_statements_for_sixty_as_for_three(server: DoorServer, tokens: Tokens) -> None:
    async def story() -> tuple[list[str], list[str]]:
        some = dict(list(tokens.items())[:FEW])
        await ask_all(server, tokens)  # connections are open and tokens noted as used
        with statements() as few:
            await ask_all(server, some)
        with statements() as many:
            await ask_all(server, tokens)
        return few, many

    few, many = asyncio.run(story())
    assert 0 < len(few) <= 24, few
    assert len(many) <= 2 * len(few), many  # those that come in two batches, at most
    rows = store_connection().execute("SELECT load::text FROM store.node WHERE name LIKE 'host-%'").fetchall()
    assert [load for (load,) in rows] == ['{"cpu_share": 0.25}'] * MANY


@asynccontextmanager
async def listening(server: Any, tokens: Tokens) -> AsyncIterator[dict[str, Any]]:
    """Hold the streams of news of two roles of each node; node -> the stream of its agent."""
    async with AsyncExitStack() as stack:
        agents = {}
        for name, token in tokens.items():
            for role in ("device", "node"):
                stream = request(server, NEWS, token, "GET", f"role={role}".encode())
                await stream.send_input({"type": "http.request", "body": b""})
                assert (await stream.receive_output(60))["status"] == 200
                assert (await stream.receive_output(60))["body"] == b"\n"
                stack.push_async_callback(ended, stream)
                agents[name] = stream  # that of the node's agent comes last
        yield agents


async def ended(stream: Any) -> None:
    await stream.send_input({"type": "http.disconnect"})
    await stream.wait(60)


def test_looks_at_news_take_as_many_statements_for_sixty_as_for_three(server: DoorServer, tokens: Tokens) -> None:
    looks: list[float] = []
    look = NewsBoard._look

    async def counted(board: NewsBoard, words: Any) -> None:
        await look(board, words)
        if words is None:
            looks.append(time.monotonic())

    async def a_look(of: Tokens) -> float:
        """Return the statements of one look for all, tokens included."""
        async with listening(server, of):
            begun = len(looks)
            with statements() as found:
                async with asyncio.timeout(60):
                    while len(looks) < begun + LOOKS:
                        await asyncio.sleep(LOOK_S / 20)
            return len(found) / LOOKS

    async def story() -> tuple[float, float]:
        return await a_look(dict(list(tokens.items())[:FEW])), await a_look(tokens)

    with patch.object(NewsBoard, "_look", counted):
        few, many = asyncio.run(story())
    assert 0 < few <= 12
    assert many <= few + 4


def test_a_word_for_one_node_wakes_no_other_and_names_its_child(server: DoorServer, tokens: Tokens) -> None:
    async def story() -> None:
        async with listening(server, dict(list(tokens.items())[:FEW])) as agents:
            board = server._board
            words: Words = {}
            for data in (b"7", b"7", b"8"):
                board._hear({"channel": wake_channel(node_word("host-1")).encode(), "data": data}, words)
            board._hear({"channel": wake_channel(node_word("nobody")).encode(), "data": b"9"}, words)
            await board._look(words)
            told = (await agents["host-1"].receive_output(60))["body"].splitlines()
            assert sorted(json.loads(line)["lease_id"] for line in told) == [7, 8]
            for other in ("host-0", "host-2"):
                assert (await agents[other].receive_output(60))["body"] == b"\n", "only that it lives"

    asyncio.run(story())


def test_of_what_is_asked_together_each_is_told_its_own(server: DoorServer, tokens: Tokens) -> None:
    async def asked(of: str, name: str, arguments: Any) -> int:
        body = node_wire.encode(arguments)
        return (await answer(request(server, NODE_OPERATIONS + name, tokens[of]), body))[0]

    async def story() -> list[int]:
        beat, load = asks("host-1")["node_beats.beat"], asks("host-1")["nodes.put_load"]
        unwritable = {**load, "load": {"text": "\u0000"}}  # no row can hold it
        return await asyncio.gather(
            asked("host-1", "node_beats.beat", beat),
            asked("host-2", "node_beats.beat", beat),
            asked("host-1", "node_beats.beat", {"node": 7, "incarnation": "life"}),
            asked("host-1", "nodes.put_load", unwritable),
            asked("host-2", "nodes.put_load", asks("host-2")["nodes.put_load"]),
        )

    assert asyncio.run(story()) == [200, 403, 422, 500, 200]
