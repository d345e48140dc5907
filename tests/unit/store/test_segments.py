"""Payloads by reference: on the disk before their rows, whole or refused by name, written on after a full disk."""

import errno
import os
import resource
import signal
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from flexmarl.store.data import groups, micro_batches, payload, segments
from flexmarl.store.data.segments import SegmentFolder
from flexmarl.store.errors import Refused, StoreFull, TokenLost
from flexmarl.store.reads import trajectories

pytestmark = pytest.mark.services

PAYLOADS = [os.urandom(size) for size in (9000, 1, 4096)]


@pytest.fixture
def folder(tmp_path: Path) -> SegmentFolder:
    folder = SegmentFolder(tmp_path / "payloads", by_value_bytes=32)
    yield folder
    folder.close()


def put(conn, folder, payloads=PAYLOADS, run_id=1, epoch=1):
    placed = folder.append(run_id, epoch, payloads)
    folder.register(conn, run_id, epoch, placed)
    return [segments.Reference(one, len(payload)) for one, payload in zip(placed, payloads, strict=True)]


def settled(story, folder, *draws):
    """Play and settle draws with their payloads in the folder; every payload of the story has 52 bytes."""
    taken = story.take(story.play(*draws))
    groups.put_groups(story.conn, taken, [story.group(draw, taken) for draw in draws], folder)
    return taken


@contextmanager
def file_size_limit(size: int):
    """Let no file of this process grow beyond a size, as a full disk would."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
        signal.signal(signal.SIGXFSZ, handler)


def test_what_was_put_is_read_back_in_any_order(store_conn, folder):
    first, second = put(store_conn, folder), put(store_conn, folder, [b"x" * 5000])
    assert first[0].placed.segment == second[0].placed.segment, "one file per writer, run and epoch"
    assert segments.fetch(store_conn, [second[0], *reversed(first)]) == [b"x" * 5000, *reversed(PAYLOADS)]
    other = put(store_conn, folder, epoch=2)
    assert other[0].placed.segment != first[0].placed.segment
    assert segments.fetch(store_conn, [other[2], first[2]]) == [PAYLOADS[2], PAYLOADS[2]]


def test_large_payloads_go_to_the_segment_and_small_ones_stay(story, folder):
    settled(story, folder, 0)
    folder.by_value_bytes = 1000
    settled(story, folder, 1)
    rows = story.conn.execute("SELECT draw, payload IS NULL, segment IS NULL FROM store.sample ORDER BY 1, member")
    assert rows.fetchall() == [(0, True, False)] * 2 + [(1, False, True)] * 2
    story.cut(0, 0, 1)
    batch = micro_batches.read(story.conn, 1, "solver", 0)
    assert [row.arrays.prompt_ids().tolist() for row in batch.rows] == [[1, 0, 0], [1, 0, 1], [1, 10, 0], [1, 10, 1]]
    assert [row.arrays.allowed_ids().tolist() for row in batch.rows] == [[4, 5, 6, 7]] * 4


@pytest.mark.parametrize(
    ("allowed", "kept"), [((), 0), ((7,), 1), ((4, 5, 6, 7), -4), ((4, 6), 2), ((5, 4), 2), (tuple(range(64)), -64)]
)
def test_allowed_ids_that_follow_each_other_take_the_room_of_one(allowed, kept):
    packed = payload.pack([1, 2], [3], [-0.5], allowed)
    assert payload.allowed_length(allowed) == kept
    assert len(packed) == payload.size_of(2, 1, kept) == 4 * (2 + 2 + (1 if kept < 0 else kept))
    arrays = payload.unpack(packed, 2, 1, kept)
    assert arrays.allowed_ids().tolist() == list(allowed)
    assert (
        arrays.allowed
        == payload.unpack(
            payload.pack([1, 2], [3], [-0.5]) + b"".join(one.to_bytes(4, "little") for one in allowed),
            2,
            1,
            len(allowed),
        ).allowed
    ), "rows of before read the same"


def test_bytes_are_flushed_before_the_rows_transaction_begins(story, folder, monkeypatch):
    seen = []
    real = os.fdatasync

    def flush(descriptor):
        seen.append((os.fstat(descriptor).st_size, story.conn.info.transaction_status.name, story.count("sample")))
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", flush)
    settled(story, folder, 0, 1, 2)
    assert seen == [(6 * 40, "IDLE", 0)], "one flush for all groups, with every byte written and no row yet"


def test_a_refused_transaction_leaves_rubbish_that_nobody_reads(story, folder):
    no = story.play(0)
    stalled = story.take(no)
    story.lapse(no)
    twin = story.take(no)
    with pytest.raises(TokenLost):
        groups.put_groups(story.conn, stalled, [story.group(0, stalled)], folder)
    assert story.count("segment") == 0
    groups.put_groups(story.conn, twin, [story.group(0, twin)], folder)
    story.cut(0, 0, attempt=2)
    assert len(micro_batches.read(story.conn, 1, "solver", 0).rows) == 2


def only_segment(folder: SegmentFolder) -> Path:
    [path] = folder.root.glob("run-*/*.segment")
    return path


def remove(path: Path) -> None:
    path.unlink()


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)


def move_away(path: Path) -> None:
    root = path.parents[1]
    root.rename(root.with_name("elsewhere"))


def other_disk(path: Path) -> None:
    (path.parents[1] / "PLACE").write_text("another folder under the same path")


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (remove, "payload_missing"),
        (shorten, "payload_truncated"),
        (flip, "payload_corrupt"),
        (move_away, "payload_unreachable"),
        (other_disk, "payload_unreachable"),
    ],
)
def test_each_damage_is_refused_by_name(story, folder, damage, code):
    settled(story, folder, 0)
    story.cut(0, 0)
    damage(only_segment(folder))
    with pytest.raises(Refused) as refused:
        micro_batches.read(story.conn, 1, "solver", 0)
    assert refused.value.code == code
    assert str(folder.root) in str(refused.value)
    turns = [turn for key in ((0, 0, 1), (0, 1, 1)) for turn in trajectories.episode(story.conn, 1, key).turns]
    assert {turn.unreadable.partition(":")[0] for turn in turns} <= {code, ""}, "pages show the rest"
    assert any(turn.unreadable for turn in turns)


def test_payloads_that_were_retired_are_refused_as_such(story, folder):
    settled(story, folder, 0)
    story.cut(0, 0)
    story.conn.execute("UPDATE store.segment SET retired_at = clock_timestamp()")
    with pytest.raises(Refused, match="the samples of run 1 were retired") as refused:
        micro_batches.read(story.conn, 1, "solver", 0)
    assert refused.value.code == "payload_retired"


def test_a_folder_that_moved_is_found_again_once_a_writer_told_of_it(story, folder):
    settled(story, folder, 0)
    story.cut(0, 0)
    folder.close()
    moved = folder.root.rename(folder.root.with_name("moved"))
    successor = SegmentFolder(moved, by_value_bytes=32)
    assert successor.place == folder.place
    settled(story, successor, 1)
    assert len(micro_batches.read(story.conn, 1, "solver", 0).rows) == 2


def test_a_full_disk_is_named_loses_nothing_and_the_writer_goes_on(story, folder):
    taken = settled(story, folder, 0)
    before = only_segment(folder).stat().st_size
    rows = [story.group(1, taken)]
    taken = story.take(story.play(1))
    with file_size_limit(before + 60):  # the first payload fits, the second does not
        for _ in range(2):
            with pytest.raises(StoreFull, match=str(folder.root)):
                groups.put_groups(story.conn, taken, rows, folder)
    assert only_segment(folder).stat().st_size == before, "no half payload stays"
    assert story.count("sample") == 2
    assert groups.put_groups(story.conn, taken, rows, folder) == 1
    story.cut(0, 0, 1)
    assert len(micro_batches.read(story.conn, 1, "solver", 0).rows) == 4


def test_a_file_whose_flush_failed_is_never_written_again(story, folder, monkeypatch):
    settled(story, folder, 0)
    real, failing = os.fdatasync, [OSError(errno.ENOSPC, "No space left on device")]

    def flush(descriptor):
        if failing:
            raise failing.pop()
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", flush)
    taken = story.take(story.play(1))
    with pytest.raises(StoreFull):
        groups.put_groups(story.conn, taken, [story.group(1, taken)], folder)
    groups.put_groups(story.conn, taken, [story.group(1, taken)], folder)
    assert story.count("segment") == 2
    story.cut(0, 0, 1)
    assert len(micro_batches.read(story.conn, 1, "solver", 0).rows) == 4


def test_threads_of_one_writer_share_the_file_without_mixing_payloads(store_conn, folder):
    placed = {}

    def write(thread: int) -> None:
        payloads = [bytes([thread]) * (1000 + i) for i in range(20)]
        placed[thread] = list(zip(folder.append(1, 1, payloads), payloads, strict=True))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pairs = [pair for number in placed for pair in placed[number]]
    folder.register(store_conn, 1, 1, [one for one, _ in pairs])
    found = segments.fetch(store_conn, [segments.Reference(one, len(payload)) for one, payload in pairs])
    assert found == [payload for _, payload in pairs]
