"""The node and the checkpoints on its disk: what nobody keeps leaves whole, what is harmed is told, what is pinned,
read or waited for stays."""

import asyncio
from pathlib import Path

import psycopg
import pytest
import torch

from flexmarl.contracts.commands import KeepCheckpoints, KeptCheckpoint
from flexmarl.host.backups import HOLD
from flexmarl.store.control import checkpoint_rows
from flexmarl.store.data import lineage
from flexmarl.store.data.lineage import VersionOrigin
from tests.support.store_story import Story
from workers.nodes.keeping import Keeping
from workers.training.folders import Inspector, root_of, write_manifest
from workers.training.version_store import VersionStore
from workers.transfer import LocalTier

pytestmark = pytest.mark.services


class Bench:
    """A node with checkpoints after steps 1 to 4 of run 1."""

    def __init__(self, conn: psycopg.Connection, home: Path) -> None:
        self.conn, self.home = conn, home
        self.story = Story(conn).start()
        self.run = self.story.run_id
        self.shelf = VersionStore(str(home), self.run, "speaker")
        self.keeping = Keeping(home, "box", self.store)
        self.digests = {step: self.write(step) for step in (1, 2, 3, 4)}

    async def store(self, call):
        return call(self.conn)

    def write(self, step: int) -> str:
        digest = LocalTier(self.home, "writer").put({"w": torch.full((4,), float(step))}).digest
        self.shelf.hold(digest, f"step-{step}")
        LocalTier(self.home, "writer").evict(digest)
        folder = root_of(self.home, self.run) / f"step-{step}"
        (folder / "speaker").mkdir(parents=True)
        (folder / "speaker/model.safetensors").write_bytes(bytes([step]) * 100)
        write_manifest(folder, {"step": step})
        part = f'{{"speaker": {{"version": {step}, "digest": "{digest}", "state": ""}}}}'
        self.conn.execute(
            "INSERT INTO store.checkpoint (run_id, label, step, versions, path, bytes, parts, node) "
            "VALUES (%s, 'last', %s, '{}', %s, 100, %s, 'box')",
            [self.run, step, str(folder), part],
        )
        return digest

    def keep(self, *steps: int) -> None:
        kept = tuple(KeptCheckpoint(step=step, why=("last",), score=(0.5, 1.0)) for step in steps)
        checkpoint_rows.keep_checkpoints(self.conn, self.run, KeepCheckpoints(newest=4, kept=kept))

    def tend(self) -> None:
        self.keeping._inspected = float("-inf")
        asyncio.run(self.keeping.tend())

    def states(self) -> dict[int, str]:
        rows = self.conn.execute("SELECT step, state FROM store.checkpoint ORDER BY step").fetchall()
        return dict(rows)

    def folders(self) -> list[str]:
        return sorted(path.name for path in root_of(self.home, self.run).iterdir())

    def here(self, step: int) -> bool:
        return LocalTier(self.home, "reader").locate(self.digests[step]) is not None


@pytest.fixture
def bench(store_conn: psycopg.Connection, tmp_path: Path) -> Bench:
    return Bench(store_conn, tmp_path)


def test_what_no_rule_keeps_leaves_with_its_claims_and_the_rest_stays(bench: Bench):
    bench.tend()
    assert set(bench.states().values()) == {"whole"}, "no rule has spoken yet"
    bench.keep(3, 4)
    bench.tend()
    assert bench.states() == {1: "removed", 2: "removed", 3: "whole", 4: "whole"}
    assert bench.folders() == ["step-3", "step-4"]
    assert [bench.here(step) for step in (1, 2, 3, 4)] == [False, False, True, True]


def test_what_is_pinned_read_or_waited_for_stays_until_it_is_not(bench: Bench):
    assert checkpoint_rows.pin(bench.conn, bench.run, 1, "ada")
    assert checkpoint_rows.read_on(bench.conn, bench.run, 2)
    lineage.put(bench.conn, 77, [VersionOrigin("speaker", bench.run, "speaker", 3, 3, True, bench.digests[3])])
    bench.keep(4)
    bench.tend()
    assert set(bench.states().values()) == {"whole"}
    assert checkpoint_rows.pin(bench.conn, bench.run, 1, None)
    bench.conn.execute("UPDATE store.checkpoint SET read_until = clock_timestamp() - interval '1 s' WHERE step = 2")
    lineage.bound(bench.conn, 77, "speaker")
    bench.tend()
    assert bench.states() == {1: "removed", 2: "removed", 3: "removed", 4: "whole"}
    assert not checkpoint_rows.pin(bench.conn, bench.run, 1, "ada"), "what is gone cannot be pinned"
    assert not checkpoint_rows.read_on(bench.conn, bench.run, 2)


def test_a_node_that_died_while_it_removed_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    bench.keep(4)
    monkeypatch.setattr("workers.training.folders.shutil.rmtree", dies)
    with pytest.raises(KeyboardInterrupt):
        bench.tend()
    monkeypatch.undo()
    assert "removing" in bench.states().values()
    gone = [step for step in (1, 2, 3) if f"step-{step}" not in bench.folders()]
    assert len(gone) == 1, "one has lost its name before it lost a file"
    bench.tend()
    assert bench.states() == {1: "removed", 2: "removed", 3: "removed", 4: "whole"}
    assert bench.folders() == ["step-4"]


def test_a_folder_that_is_harmed_is_told_and_told_again_when_it_is_mended(bench: Bench):
    root = root_of(bench.home, bench.run)
    (root / "step-1").rename(root / "away")
    weights = root / "step-2/speaker/model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(b"x" * len(good))
    (root / "step-3/flexmarl.json").unlink()
    bench.tend()
    assert bench.states() == {1: "missing", 2: "damaged", 3: "damaged", 4: "whole"}
    [text] = bench.conn.execute("SELECT state_text FROM store.checkpoint WHERE step = 2").fetchone()
    assert "speaker/model.safetensors" in text
    assert "put it back" in text
    (root / "away").rename(root / "step-1")
    weights.write_bytes(good)
    bench.tend()
    assert bench.states() == {1: "whole", 2: "whole", 3: "damaged", 4: "whole"}


def test_nothing_outside_the_runs_folder_is_removed(bench: Bench, tmp_path: Path):
    outside = tmp_path / "precious"
    outside.mkdir()
    bench.conn.execute("UPDATE store.checkpoint SET path = %s WHERE step = 1", [str(outside)])
    bench.keep(4)
    bench.tend()
    assert outside.is_dir()
    assert bench.states()[1] == "removed", "where it lies follows from its run and step alone"


def test_what_a_copy_waits_for_is_held_and_let_go_when_it_has_it(bench: Bench):
    other = LocalTier(bench.home, "writer").put({"w": torch.ones(3)}).digest
    lineage.put(bench.conn, bench.run, [VersionOrigin("speaker", 5, "speaker", 9, 9, False, other)])
    bench.tend()
    LocalTier(bench.home, "writer").evict(other)
    reader = LocalTier(bench.home, "reader")
    assert reader.locate(other) is not None, "its writer let it go, the copy has not come yet"
    lineage.bound(bench.conn, bench.run, "speaker")
    bench.tend()
    assert reader.locate(other) is None


def test_a_folder_that_goes_while_it_is_looked_at_is_missing_and_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "step-1"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    write_manifest(folder, {})
    from workers.training import folders

    known = folders.listed

    def goes(path: Path) -> dict[str, tuple[int, str]]:
        found = known(path)
        folders.remove(path)
        return found

    monkeypatch.setattr(folders, "listed", goes)
    damage = Inspector().look(folder)
    assert damage is not None
    assert damage.state == "missing"


def test_a_file_is_read_through_once_and_again_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "step-1"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    write_manifest(folder, {})
    inspector, read = Inspector(), []
    from workers.training import folders

    whole = folders.hash_of
    monkeypatch.setattr(folders, "hash_of", lambda path: read.append(path) or whole(path))
    assert inspector.look(folder) is None
    assert inspector.look(folder) is None
    assert len(read) == 1
    (folder / "a").write_bytes(b"2")
    damage = inspector.look(folder)
    assert damage is not None
    assert damage.state == "damaged"
    assert len(read) == 2


def test_nothing_leaves_while_a_backup_is_made(bench: Bench):
    (bench.home / HOLD).touch()
    bench.keep(4)
    bench.tend()
    assert set(bench.states().values()) == {"whole"}
    (bench.home / HOLD).unlink()
    bench.tend()
    assert bench.states() == {1: "removed", 2: "removed", 3: "removed", 4: "whole"}


def test_a_home_may_move_with_its_checkpoints(bench: Bench, tmp_path: Path):
    """Rows name the folder in which a checkpoint was written."""
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    bench.home.rename(moved)
    bench.home, bench.keeping = moved, Keeping(moved, "box", bench.store)
    bench.tend()
    assert set(bench.states().values()) == {"whole"}
    bench.keep(4)
    bench.tend()
    assert bench.folders() == ["step-4"]
    assert [bench.here(step) for step in (1, 2, 3, 4)] == [False, False, False, True]
