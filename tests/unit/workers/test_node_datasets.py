"""A node fetches datasets of a hub in a process of its own, and keeps them in the database."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest

from flexmarl.store.control import dataset_fetches
from tests.support.hub_datasets import grade_school
from tests.support.hub_server import COMMIT, HubServer, hub_server
from workers import settings
from workers.nodes import datasets as node_datasets
from workers.nodes import import_process
from workers.nodes.datasets import DatasetFetching

pytestmark = pytest.mark.services


class Node:
    """A node of a test: its home and the store."""

    def __init__(self, conn, home: Path, hub: HubServer) -> None:
        self.conn, self.hub = conn, hub
        urls = {"DATABASE_URL": "postgresql://here/x", "REDIS_URL": "redis://here/0"}
        known = settings.load({**urls, "FLEXMARL_HOME": str(home), "FLEXMARL_CLUSTER_KEY": "x"})
        self.settings = replace(known, node="box", hub=hub.address, secrets={"HUB": hub.token})
        self.home = home

    async def store(self, call):
        return call(self.conn)

    def fetching(self, **of_settings: object) -> DatasetFetching:
        return DatasetFetching(replace(self.settings, **of_settings), self.store)

    def asked(self, secret: str = "HUB") -> UUID:
        source = {
            "repository": "us/school", "revision": "main", "secret": secret, "configuration": "main",
            "splits": ["train", "test"],
        }  # fmt: skip
        dataset_fetches.create(self.conn, fetch := uuid4(), "default", source, 2**20, ("ada", "1"))
        return fetch

    def row(self, fetch: UUID) -> tuple[str, str, str, str, int, dict]:
        columns = "state, reason, reason_text, digest, bytes, found"
        return self.conn.execute(f"SELECT {columns} FROM store.dataset_fetch WHERE id = %s", [fetch]).fetchone()

    def body(self, fetch: UUID) -> bytes:
        parts = (dataset_fetches.part(self.conn, fetch, place) for place in count())
        return b"".join(iter(lambda: next(parts), None))


@pytest.fixture
def node(store_conn, tmp_path: Path) -> Iterator[Node]:
    hub = HubServer({"us/school": grade_school(tmp_path / "school")}, private=frozenset({"us/school"}))
    with hub_server(hub):
        yield Node(store_conn, tmp_path / "home", hub)


def test_splits_are_fetched_with_a_secret_and_kept_in_the_database_alone(node: Node, monkeypatch):
    monkeypatch.setattr(node_datasets, "PART_BYTES", 1000)
    ends = []
    for of_settings in ({"hub": ""}, {"secrets": {}}, {}):
        fetch = node.asked()
        asyncio.run(node.fetching(**of_settings).tend())
        ends.append(node.row(fetch))
    assert [end[:2] for end in ends] == [("failed", "hub_off"), ("failed", "secret_missing"), ("done", "")], ends
    _, _, _, digest, size, found = ends[2]
    assert (found["commit"], len(found["files"])) == (COMMIT, 3)
    body = node.body(fetch)
    assert (sha256(body).hexdigest(), len(body)) == (digest, size)
    assert size > 1000
    assert not list(node.home.rglob("*.tar"))
    assert node.hub.token not in repr(ends)


@pytest.mark.parametrize(
    ("script", "reason", "said"),
    [("echo oops >&2; exit 1", "fault", "code 1: oops"), ("kill -9 $$", "out_of_memory", "ended by signal 9")],
)
def test_a_process_that_fetches_nothing_is_told(node: Node, monkeypatch, tmp_path, script, reason, said):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(import_process.sys, "executable", str(python))
    fetch = node.asked()
    asyncio.run(node.fetching().tend())
    assert node.row(fetch)[:2] == ("failed", reason)
    assert said in node.row(fetch)[2]


def test_a_cancelled_fetch_is_killed(node: Node, monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(import_process.sys, "executable", str(python))
    monkeypatch.setattr(import_process, "RENEW_S", 0.2)
    fetch = node.asked()

    async def cancelled() -> None:
        tending = asyncio.create_task(node.fetching().tend())
        async with asyncio.timeout(60.0):
            while not (tmp_path / "pid").exists():
                await asyncio.sleep(0.05)
            node.conn.execute("UPDATE store.dataset_fetch SET state = 'cancelled'")
            await tending

    asyncio.run(cancelled())
    assert node.row(fetch)[0] == "cancelled"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_database_without_room_is_told(node: Node, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise psycopg.errors.DiskFull("no space")

    monkeypatch.setattr(dataset_fetches, "put_part", full)
    fetch = node.asked()
    asyncio.run(node.fetching().tend())
    assert node.row(fetch)[:2] == ("failed", "state_full")
    assert node.body(fetch) == b""
