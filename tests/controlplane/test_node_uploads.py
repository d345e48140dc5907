"""Contents that nodes send are passed on to a node that keeps them: those of a node's own runs, and nobody else's."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import md5
from typing import Any

import psycopg
import pytest
from aiohttp import web
from asgiref.testing import ApplicationCommunicator

from flexmarl.contracts.resolve import resolve
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.store import database_url
from flexmarl.controlplane.experiments.hosts import unhostable
from flexmarl.controlplane.inventory import node_tokens, node_uploads
from flexmarl.controlplane.inventory.door_server import DoorServer
from flexmarl.controlplane.inventory.models import Pool
from flexmarl.controlplane.inventory.node_uploads import CONTENTS
from flexmarl.store.control import nodes
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts
from tests.controlplane.test_door_server import end_sessions, nothing

pytestmark = pytest.mark.django_db(transaction=True)
RUN, OTHER = 7, 8
DIGEST, CHUNK = "a" * 64, "b" * 64
PATH = f"{RUN}/{DIGEST}"
BOXES = sorted(("box-1", "box-2"), key=lambda name: md5(f"{RUN}{name}".encode()).digest())
"""Nodes in the order in which the run's uploads go to them."""


def registered(name: str, address: str, pool: str) -> None:
    with psycopg.connect(database_url(), autocommit=True) as conn:
        device = DeviceFacts(f"{name}.cpu0", "cpu", 0, pool=pool)
        nodes.register_node(conn, NodeFacts(name, address, "i", "1"), [device])


@pytest.fixture
def token() -> Iterator[str]:
    """The token of a node that trains run 7, while another trains run 8."""
    made = node_tokens.create(Actor.system(), "far-1", "far")[1]
    for name, run in (("far-1", RUN), ("other", OTHER)):
        registered(name, "", name.removesuffix("-1"))
        with psycopg.connect(database_url(), autocommit=True) as conn:
            query = "INSERT INTO store.lease (device_id, run_id, use) VALUES (%s, %s, 'trainer')"
            conn.execute(query, [f"{name}.cpu0", run])
    yield made
    with psycopg.connect(database_url(), autocommit=True) as conn:  # these rows are not Django's to flush
        conn.execute("DELETE FROM store.lease WHERE run_id = ANY(%s)", [[RUN, OTHER]])
        for table, column in (("device", "node"), ("node", "name")):
            query = f"DELETE FROM store.{table} WHERE {column} = ANY(%s)"
            conn.execute(query.encode(), [["far-1", "other", "box", *BOXES]])


@pytest.fixture
def server(settings: Any) -> Iterator[DoorServer]:
    settings.CLUSTER_KEY = "the cluster key"
    yield DoorServer(nothing)
    end_sessions()


@asynccontextmanager
async def keeping(status: int = 200, name: str = "box") -> AsyncIterator[list[tuple[str, str, bytes]]]:
    """Have a node keep what comes: its path and query, the credential that came with it, the body."""
    came: list[tuple[str, str, bytes]] = []

    async def take(request: web.Request) -> web.Response:
        came.append((request.path_qs, request.headers["Authorization"], await request.read()))
        return web.json_response({"keeper": name, "missing": []}, status=status)

    app = web.Application(client_max_size=2**26)
    app.add_routes([web.put("/{path:.*}", take)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await asyncio.to_thread(registered, name, f"127.0.0.1:{runner.addresses[0][1]}", "default")
    try:
        yield came
    finally:
        await runner.cleanup()


def request(
    server: Any, token: str, path: str, query: str = "", length: object = 4, method: str = "PUT"
) -> ApplicationCommunicator:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    headers += [] if length is None else [(b"content-length", str(length).encode())]
    scope = {
        "type": "http", "method": method, "path": CONTENTS + path, "query_string": query.encode(), "headers": headers,
    }  # fmt: skip
    return ApplicationCommunicator(server, scope)


async def said(asked: ApplicationCommunicator, body: bytes | None = b"body") -> tuple[int, str]:
    """Return status and code of an answer; without a body, before any is sent."""
    if body is not None:
        await asked.send_input({"type": "http.request", "body": body})
    start = await asked.receive_output(30)
    told = json.loads((await asked.receive_output(30))["body"])
    return start["status"], told.get("code", "")


def test_what_a_node_sends_is_passed_on_under_the_cluster_key(server: DoorServer, token: str) -> None:
    async def story() -> None:
        async with keeping() as came:
            query = "policy=solver&keep=version&keeper=box&other=x"
            assert await said(request(server, token, PATH, query)) == (200, "")
            pieces = request(server, token, f"{PATH}/chunks/{CHUNK}")
            await pieces.send_input({"type": "http.request", "body": b"bo", "more_body": True})
            assert await said(pieces, b"dy") == (200, "")
            assert await said(request(server, token, f"{PATH}/folder", "step=3", 0), b"") == (200, "")
        key = "Bearer the cluster key"
        assert came == [
            (f"/v1/uploads/{PATH}?policy=solver&keep=version", key, b"body"),
            (f"/v1/uploads/{PATH}/chunks/{CHUNK}", key, b"body"),
            (f"/v1/uploads/{PATH}/folder?step=3", key, b""),
        ]

    asyncio.run(story())


def test_a_node_sends_contents_of_runs_that_it_trains_and_no_paths(server: DoorServer, token: str) -> None:
    async def story() -> None:
        async with keeping() as came:
            assert await said(request(server, token, f"{OTHER}/{DIGEST}")) == (403, "not_its_own")
            assert await said(request(server, token, f"9/{DIGEST}")) == (403, "not_its_own")
            for path in (
                f"{RUN}/{DIGEST[1:]}", f"{RUN}/../{DIGEST}", f"{RUN}/{DIGEST}/chunks/../../state", f"x/{DIGEST}",
                f"{RUN}/{DIGEST}/archive", f"{RUN}/{DIGEST.upper()}", f"{RUN}/{DIGEST}\n",
            ):  # fmt: skip
                assert await said(request(server, token, path)) == (404, "unknown_content"), path
            for query in ("policy=../x", "keep=step-1/..", "step=-1", "policy=a%0Ab", "keep=version%26run=8"):
                assert await said(request(server, token, PATH, query)) == (422, "unreadable"), query
            assert await said(request(server, token, PATH, "keeper=127.0.0.1")) == (503, "keeper_gone"), "a name alone"
            assert await said(request(server, token, PATH, length=None)) == (411, "length_required")
            assert await said(request(server, token, PATH, length="4, 5")) == (411, "length_required")
            most = node_uploads.LARGEST_BYTES
            assert await said(request(server, token, PATH, length=most + 1), None) == (413, "too_large")
            assert await said(request(server, token, PATH, method="POST")) == (405, "method_not_allowed")
            for wrong in ("", "fmn_abc.def", f"{token}x"):
                assert await said(request(server, wrong, PATH), None) == (401, "not_admitted"), "before a byte is read"
        assert came == []

    asyncio.run(story())


def test_an_ended_lease_sends_nothing(server: DoorServer, token: str) -> None:
    with psycopg.connect(database_url(), autocommit=True) as conn:
        conn.execute("UPDATE store.lease SET state = 'ended' WHERE run_id = %s", [RUN])

    async def story() -> None:
        async with keeping() as came:
            assert await said(request(server, token, PATH)) == (403, "not_its_own")
        assert came == []

    asyncio.run(story())


def test_a_body_that_breaks_off_is_none(server: DoorServer, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with keeping() as came:
            short = request(server, token, f"{PATH}/chunks/{CHUNK}", length=8)
            await short.send_input({"type": "http.request", "body": b"body"})
            left = request(server, token, f"{PATH}/chunks/{CHUNK}", length=8)
            await left.send_input({"type": "http.request", "body": b"body", "more_body": True})
            await left.send_input({"type": "http.disconnect"})
            monkeypatch.setattr(node_uploads, "SILENT_S", 0.2)
            silent = request(server, token, f"{PATH}/chunks/{CHUNK}", length=8)
            await silent.send_input({"type": "http.request", "body": b"body", "more_body": True})
            for asked in (short, left, silent):
                await asked.wait(30)
                assert asked.output_queue.empty()
        assert came == []

    asyncio.run(story())


def test_a_keeper_s_refusal_is_told_and_one_that_is_gone_is_waited_for(server: DoorServer, token: str) -> None:
    async def story() -> None:
        assert await said(request(server, token, PATH)) == (503, "keeper_gone"), "there is none"
        async with keeping(507):
            assert (await said(request(server, token, PATH)))[0] == 507
        assert await said(request(server, token, PATH)) == (503, "keeper_gone"), "it does not answer any more"

    asyncio.run(story())


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_a_fault_of_the_node_that_stores_is_not_the_sender_s(server: DoorServer, token: str, status: int) -> None:
    """A 401 of that node would end the sender's processes if it came through: its token holds."""

    async def story() -> None:
        async with keeping(status):
            assert await said(request(server, token, PATH)) == (503, "receiver_failed")

    asyncio.run(story())


def test_what_one_node_fails_to_store_goes_to_another(server: DoorServer, token: str) -> None:
    first, second = BOXES

    async def story() -> None:
        async with keeping(500, first) as refused, keeping(200, second) as stored:
            assert await said(request(server, token, PATH)) == (503, "receiver_failed")
            for _ in range(3):
                assert await said(request(server, token, PATH)) == (200, "")
            named = request(server, token, PATH, f"keeper={first}")
            assert await said(named) == (503, "receiver_failed"), "what was begun there goes on there"
            assert (len(refused), len(stored)) == (2, 3)

    asyncio.run(story())


@pytest.mark.parametrize("rollout", ["default", "given"])
def test_trainers_there_need_a_node_that_keeps_what_they_make(token: str, rollout: str) -> None:
    Pool.objects.create(name="given", provider={"type": "slurm", "access": "node_token"})
    pools = {"training_pool": "far" if rollout == "default" else "given", "rollout_pool": rollout}
    spec = resolve({"resources": pools}, template="reference_game").spec
    [problem] = [one for one in unhostable(spec, "") if one.code == "pool_unreachable"]
    assert problem.pointer == "/resources/training_pool"
    assert ("set rollout_pool" in problem.hint) == (rollout == "default"), "homes there end with their hosts anyway"
    registered("box", "127.0.0.1:1", "default")
    assert not [one for one in unhostable(spec, "") if one.code == "pool_unreachable"]
