"""Samples of ended runs are retired by command and by the driver's housekeeping."""

import io
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.management.commands.drive import database_url
from flexmarl.controlplane.runs.retention import Janitor
from flexmarl.store.connection import connect
from flexmarl.store.segments import SegmentFolder

pytestmark = [pytest.mark.services, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def ended(make_run, editor, settings, tmp_path: Path):
    """A run that ended two days ago, with one sample whose payload lies in a segment file."""
    settings.PAYLOADS = tmp_path / "payloads"
    run, conn, folder = make_run(editor), store_connection(), SegmentFolder(tmp_path / "payloads")
    [placed] = folder.append(run.no, 1, [b"1234"])
    folder.register(conn, run.no, 1, [placed])
    folder.close()
    conn.execute(
        "INSERT INTO store.sample (run_id, draw, member, attempt, role, turn, policy, version, segments, n_prompt,"
        " n_response, finish, segment, seg_offset, digest) VALUES (%s, 0, 0, 1, 'a', 0, 'a', 0, '{}', 1, 0, 'stop',"
        " %s, %s, %s)",
        [run.no, placed.segment, placed.offset, placed.digest],
    )
    conn.execute(
        "UPDATE store.run_state SET status = 'completed', finished_at = now() - interval '2 days' WHERE run_id = %s",
        [run.no],
    )
    yield run
    conn.execute("DELETE FROM store.retirement")
    conn.execute("DELETE FROM store.segment")


def samples(run) -> int:
    row = store_connection().execute("SELECT count(*) FROM store.sample WHERE run_id = %s", [run.no]).fetchone()
    return int(row[0])


def command(*arguments: str) -> str:
    output = io.StringIO()
    call_command("retire_samples", *arguments, stdout=output)
    return output.getvalue()


def test_the_command_retires_by_age_and_by_name(ended, settings):
    assert command("--days", "3") == "0 files removed\n"
    assert command("--days", "1", "--dry-run") == f"{ended.key}: would be retired\n"
    assert samples(ended) == 1
    assert command(ended.key) == f"{ended.key}: 1 samples retired\n1 files removed\n"
    assert samples(ended) == 0
    assert list(settings.PAYLOADS.glob("run-*")) == []


def test_the_command_refuses_what_it_cannot_do(ended):
    for arguments, text in ((["none-such"], "no run none-such"), ([], "name runs"), (["--days", "-1"], "from 0")):
        with pytest.raises(CommandError, match=text):
            command(*arguments)
    store_connection().execute("UPDATE store.run_state SET status = 'running' WHERE run_id = %s", [ended.no])
    assert "kept: run" in command(ended.key)
    assert samples(ended) == 1


def test_housekeeping_follows_the_setting(ended, settings):
    for days, left in ((0, 1), (3, 1), (1, 0)):
        with connect(database_url(), "test") as conn:
            Janitor(database_url(), settings.PAYLOADS, days).tidy(conn)
        assert samples(ended) == left
    assert list(settings.PAYLOADS.glob("run-*")) == []
