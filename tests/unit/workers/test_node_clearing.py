"""The node gives room back: all of deleted runs, of ended ones what nobody can ask for, and nothing of others."""

import asyncio
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import torch

from flexmarl.contracts.status import RunStatus
from flexmarl.store.control import deletions, runs
from workers.nodes.clearing import Clearing
from workers.training.folders import root_of
from workers.training.version_store import VersionStore, owner_of
from workers.transfer import LocalTier

pytestmark = pytest.mark.services


class Bench:
    """A node with a version, a checkpoint and payloads of runs 1 and 11."""

    def __init__(self, conn: psycopg.Connection, home: Path) -> None:
        self.conn, self.home = conn, home
        conn.execute("INSERT INTO store.node (name, address, incarnation) VALUES ('box', 'box:1', 'b1')")
        self.clearing = Clearing(home, "box", self.store)
        self.digests = {run_id: self.fill(run_id) for run_id in (1, 11)}

    async def store(self, call):
        return call(self.conn)

    def fill(self, run_id: int) -> str:
        runs.create_run(self.conn, run_id, {}, RunStatus.DRAFT)
        shelf = VersionStore(str(self.home), run_id, "speaker")
        digest = shelf.put_weights({"w": torch.full((4,), float(run_id))})
        shelf.hold_all({digest}, "step-1")
        shelf.settle()
        folder = root_of(self.home, run_id) / "step-1"
        folder.mkdir(parents=True)
        (folder / "model").write_bytes(b"1")
        payloads = self.home / "payloads" / f"run-{run_id}"
        payloads.mkdir(parents=True)
        (payloads / "a.segment").write_bytes(b"1")
        return digest

    def tend(self) -> None:
        self.clearing._looked = float("-inf")
        asyncio.run(self.clearing.tend())

    def delete(self, run_id: int) -> None:
        deletions.ask(self.conn, deletions.DeletionRequest(run_id, uuid4(), uuid4(), f"run-{run_id}", "default"))

    def left(self, run_id: int) -> tuple[bool, bool, bool]:
        digest = LocalTier(self.home, "reader").locate(self.digests[run_id])
        folders = root_of(self.home, run_id).exists(), (self.home / "payloads" / f"run-{run_id}").exists()
        return (digest is not None, *folders)


@pytest.fixture
def bench(store_conn, tmp_path):
    return Bench(store_conn, tmp_path)


ALL, NONE = (True, True, True), (False, False, False)


def ended(conn, run_id=None):
    where = "" if run_id is None else f" AND run_id = {run_id}"
    return conn.execute(f"SELECT bool_and(ended_at IS NOT NULL) FROM store.run_deletion WHERE true{where}").fetchone()[
        0
    ]


def test_everything_of_a_deleted_run_goes_and_the_node_says_so(bench):
    bench.delete(1)
    bench.tend()
    assert bench.left(1) == ALL, "its rows are still there"
    deletions.carry_out(bench.conn, 1)
    assert not ended(bench.conn)
    bench.tend()
    assert (bench.left(1), bench.left(11), ended(bench.conn)) == (NONE, ALL, True)


def test_a_run_that_the_store_does_not_know_is_left_alone(bench):
    bench.conn.execute("DELETE FROM store.run_state WHERE run_id = 11")
    bench.tend()
    assert bench.left(11) == ALL


def test_a_node_that_was_away_cleans_up_when_it_is_back(bench):
    bench.conn.execute("DELETE FROM store.node")
    bench.delete(1)
    deletions.carry_out(bench.conn, 1)
    assert ended(bench.conn), "nobody is waited for"
    bench.tend()
    assert bench.left(1) == NONE


def test_what_cannot_be_removed_is_tried_again(bench, monkeypatch):
    bench.delete(1)
    deletions.carry_out(bench.conn, 1)
    with monkeypatch.context() as broken:
        broken.setattr(LocalTier, "evict", lambda *_: (_ for _ in ()).throw(OSError("read only")))
        bench.tend()
    assert not ended(bench.conn)
    bench.tend()
    assert (bench.left(1), ended(bench.conn)) == (NONE, True)


def test_a_content_that_another_run_claims_stays(bench):
    LocalTier(bench.home, owner_of(11, "speaker")).claim(bench.digests[1])
    bench.delete(1)
    deletions.carry_out(bench.conn, 1)
    bench.tend()
    assert bench.left(1) == (True, False, False)


def test_versions_of_an_ended_run_that_no_row_speaks_of_go(bench):
    conn, shelf = bench.conn, VersionStore(str(bench.home), 1, "speaker")
    digests = [shelf.put_weights({"w": torch.full((4,), 100.0 + version)}) for version in range(6)]
    shelf.settle()
    for version, digest in enumerate(digests):
        conn.execute(
            "INSERT INTO store.policy_version (run_id, policy, version, digest) VALUES (1, 'speaker', %s, %s)",
            [version, digest],
        )
    tier = LocalTier(bench.home, "reader")
    bench.tend()
    assert all(tier.locate(digest) for digest in digests), "it has not ended"
    conn.execute("UPDATE store.run_state SET status = 'completed', finished_at = now() - interval '1 hour'")
    bench.tend()
    assert [tier.locate(digest) is not None for digest in digests] == [True, False, False, True, True, True]
    assert tier.locate(bench.digests[1]) is not None, "a checkpoint holds it"
