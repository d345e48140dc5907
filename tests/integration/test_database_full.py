"""A full disk under PostgreSQL: refused by name, nothing that was acknowledged is lost, and the same rows go in later.

The server lives on a file system of its own, a small one in memory, so that it can really be full.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psycopg
import pytest

from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.store import schema
from flexmarl.store.control import commands
from flexmarl.store.control.commands import Taken
from flexmarl.store.data.groups import SettledGroup, put_groups
from flexmarl.store.errors import StoreFull
from flexmarl.store.reads import report
from tests.support.store_story import Story

pytestmark = pytest.mark.services

DISK = "224m"
SETTINGS = {"shared_buffers": "16MB", "min_wal_size": "32MB", "max_wal_size": "64MB", "autovacuum": "off"}
DRAWS = 60
TOKENS = 30_000
LEFT = 2 << 20
"""Bytes that stay free: less than the rows need, more than what it takes to refuse them."""


@pytest.fixture
def disk(short_tmp: Path) -> Iterator[Path]:
    """Mount a small file system; skipped where that is not allowed."""
    folder = short_tmp / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0711", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def server(disk: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(Home(disk / "home"), settings=SETTINGS)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def fill(disk: Path, left: int) -> Path:
    """Take what is free on the disk, but for so many bytes."""
    filler, size = disk / "filler", 0
    with filler.open("wb") as file:
        while (free := _free(disk)) > left:  # others write meanwhile, so what is free now may be gone a moment later
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), size, part := min(free - left, 2**20))
                size += part
    return filler


def _free(disk: Path) -> int:
    state = os.statvfs(disk)
    return state.f_bavail * state.f_frsize


def large(group: SettledGroup) -> SettledGroup:
    """Give the group's rows payloads of some size."""
    prompt = np.arange(TOKENS, dtype=np.int32)
    return SettledGroup(group.event, group.episodes, [replace(sample, prompt=prompt) for sample in group.samples])


def held(url: str) -> list[tuple[int, int, int]]:
    """Return draw, rows, and payload bytes of what the store holds."""
    with psycopg.connect(url, autocommit=True) as conn:
        return conn.execute(
            "SELECT draw, count(*), sum(length(payload)) FROM store.sample GROUP BY draw ORDER BY draw"
        ).fetchall()


def told(draws: list[int]) -> list[tuple[int, int, int]]:
    """Return what `held` returns when exactly these draws were put."""
    size = 4 * (TOKENS + 2 * 3 + 1)  # allowed ids that follow each other take the room of one
    return [(draw, 2, 2 * size) for draw in draws]


def put_until_refused(conn: psycopg.Connection, taken: Taken, groups: list[SettledGroup]) -> tuple[int, StoreFull]:
    """Put one group after the other, the first of which is there; return how many are, and the refusal."""
    for number in range(1, len(groups)):
        try:
            put_groups(conn, taken, groups[number : number + 1])
        except StoreFull as full:
            return number, full
    raise AssertionError("everything found space")


def write_log(conn: psycopg.Connection) -> None:
    """Let the server's log need further files."""
    for _ in range(200):
        conn.execute("SELECT pg_logical_emit_message(true, 'filler', repeat('x', 1000000))")


def test_rows_that_find_no_space_are_refused_by_name_and_go_in_later(disk, server):
    with psycopg.connect(server.url, autocommit=True) as conn:
        schema.apply(conn)
        story = Story(conn).start()
        taken = story.take(story.play(*range(DRAWS)))
        groups = [large(story.group(draw, taken)) for draw in range(DRAWS)]
        put_groups(conn, taken, groups[:1])
        conn.execute("CHECKPOINT")
        conn.execute("SELECT pg_switch_wal()")  # a log segment with room: the tables are what grows
        conn.execute("SELECT pg_logical_emit_message(true, 'room', 'x')")  # and it is on the disk now
        filler = fill(disk, LEFT)
        acknowledged, full = put_until_refused(conn, taken, groups)
        assert (full.code, full.where) == ("store_full", "the database")
        assert "No space left on device" in str(full)
        assert held(server.url) == told(list(range(acknowledged))), "whole groups, only those that were acknowledged"
        assert story.count("inbox") == acknowledged
        filler.unlink()
        assert put_groups(conn, taken, groups) == DRAWS - acknowledged
        commands.finish(conn, taken)
        story.decide()
        assert held(server.url) == told(list(range(DRAWS)))
        assert {check.name for check in report.consistency_report(conn, 1) if not check.ok} <= {"episodes_accounted"}


def test_a_server_that_finds_no_space_for_its_own_log_keeps_what_it_acknowledged(disk, server):
    with psycopg.connect(server.url, autocommit=True) as conn:
        schema.apply(conn)
        story = Story(conn).start()
        taken = story.take(story.play(0, 1))
        groups = [large(story.group(draw, taken)) for draw in range(2)]
        put_groups(conn, taken, groups[:1])
        filler = fill(disk, 0)
        with pytest.raises(psycopg.OperationalError):
            write_log(conn)
        with pytest.raises((psycopg.OperationalError, StoreFull)):
            put_groups(conn, taken, groups[1:])
    filler.unlink()
    server.stop()
    server.start()
    assert held(server.url) == told([0])
    with psycopg.connect(server.url, autocommit=True) as conn:
        assert put_groups(conn, taken, groups) == 1
    assert held(server.url) == told([0, 1])
