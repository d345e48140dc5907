"""Samples of ended runs are retired by command and by the driver's housekeeping."""

import io
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import database_url, store_connection
from flexmarl.controlplane.runs import limits
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.runs.retention import Janitor
from flexmarl.store.connection import connect
from flexmarl.store.data.segments import SegmentFolder
from flexmarl.store.reads import storage
from flexmarl.store.telemetry import logs
from flexmarl.store.telemetry.logs import LogLine
from webui.views.storage import PLACES

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
    conn.execute("DELETE FROM store.sample")
    conn.execute("DELETE FROM store.log")


def samples(run) -> int:
    row = store_connection().execute("SELECT count(*) FROM store.sample WHERE run_id = %s", [run.no]).fetchone()
    return int(row[0])


def command(*arguments: str) -> str:
    output = io.StringIO()
    call_command("retire_samples", *arguments, stdout=output)
    return output.getvalue()


def test_the_command_retires_by_age_and_by_name(ended, settings):
    assert command("--days", "3") == "0 files removed\n"
    assert command("--days", "1", "--dry-run") == f"{ended.key}: samples would be deleted\n"
    assert samples(ended) == 1
    assert command(ended.key) == f"{ended.key}: 1 samples deleted\n1 files removed\n"
    assert samples(ended) == 0
    assert list(settings.PAYLOADS.glob("run-*")) == []


def test_the_command_refuses_what_it_cannot_do(ended):
    for arguments, text in (
        (["none-such"], "no run none-such"),
        ([], "use either runs"),
        (["--days", "-1"], "from 0"),
    ):
        with pytest.raises(CommandError, match=text):
            command(*arguments)
    store_connection().execute("UPDATE store.run_state SET status = 'running' WHERE run_id = %s", [ended.no])
    assert "kept: run" in command(ended.key)
    assert samples(ended) == 1


def tidy(settings) -> None:
    with connect(database_url(), "test") as conn:
        Janitor(database_url(), settings.PAYLOADS.parent).tidy(conn)


def test_housekeeping_follows_the_limit_of_age(ended, settings):
    for days, left in ((0, 1), (3, 1), (1, 0)):
        settings.KEEP_SAMPLES_DAYS = days
        tidy(settings)
        assert samples(ended) == left
    assert list(settings.PAYLOADS.glob("run-*")) == []


def test_by_default_both_limits_are_set(settings):
    found = {limit.name: (limit.days > 0, limit.bytes > 0) for limit in limits.limits()}
    assert found == {"samples": (True, True), "log": (True, True), "runs": (False, False)}


def test_housekeeping_follows_the_limit_of_size(ended, settings, monkeypatch):
    """The run that ended first goes, and nothing as long as everything fits."""
    settings.KEEP_SAMPLES_DAYS, settings.KEEP_SAMPLES_GIB = 0, 1
    tidy(settings)
    assert samples(ended) == 1
    monkeypatch.setattr(limits, "GIB", 1)
    tidy(settings)
    assert samples(ended) == 0
    done = storage.last_pass(store_connection())
    assert [(one["run"], one["kind"], one["amount"]) for one in done.done] == [(ended.no, "samples", 1)]


def test_log_lines_of_ended_runs_leave_by_age(ended, settings):
    conn = store_connection()
    logs.put(conn, ended.no, [LogLine(ended.no, 1.0, "info", "driver", "a line")])
    for days, left in ((3, 1), (1, 0)):
        settings.KEEP_LOGS_DAYS = days
        tidy(settings)
        assert conn.execute("SELECT count(*) FROM store.log WHERE run_id = %s", [ended.no]).fetchone() == (left,)


def test_whole_runs_are_kept_unless_an_operator_limits_them(ended, settings):
    """By age, in the platform's name, and audited; a pinned checkpoint keeps its run."""
    conn = store_connection()
    conn.execute(
        "INSERT INTO store.checkpoint (run_id, label, step, versions, path, bytes) VALUES (%s, 'l', 1, '{}', 'x', 0)",
        [ended.no],
    )
    for days, pinned, left in ((0, False, 1), (3, False, 1), (1, True, 1), (1, False, 0)):
        settings.KEEP_RUNS_DAYS = days
        conn.execute("UPDATE store.checkpoint SET pinned_at = CASE WHEN %s THEN now() END", [pinned])
        tidy(settings)
        assert Run.objects.filter(pk=ended.pk).count() == left
    entry = AuditEntry.objects.get(action="run.delete")
    assert (entry.actor_name, entry.target_name) == ("retention", ended.key)
    done = storage.last_pass(conn)
    assert [(one["run"], one["amount"]) for one in done.done if one["kind"] == "runs"] == [(ended.no, 1)]


def test_whole_runs_leave_by_size_and_the_page_tells_which(ended, settings, monkeypatch):
    settings.KEEP_RUNS_GIB = 1
    tidy(settings)
    assert Run.objects.filter(pk=ended.pk).exists()
    monkeypatch.setattr(limits, "GIB", 1)
    store_connection().execute(
        "INSERT INTO store.metric (run_id, name, step, at, value) VALUES (%s, 'reward/team', 1, now(), 1)", [ended.no]
    )
    tidy(settings)
    assert not Run.objects.filter(pk=ended.pk).exists()


def test_what_takes_the_room_is_measured(ended, settings):
    settings.KEEP_SAMPLES_DAYS = 0
    build = settings.PAYLOADS.parent / "packages" / "build"
    build.mkdir(parents=True)
    (build / "installed").write_bytes(bytes(5000))
    (build / "python").symlink_to(sys.executable)
    tidy(settings)
    taken = {use.kind: use for use in storage.uses(store_connection()) if use.run_id == ended.no}
    assert (taken["samples"].rows, taken["payloads"].bytes) == (1, 4)
    assert taken["samples"].bytes > 0
    found = storage.last_pass(store_connection())
    assert found.places["payloads"] >= 4
    assert found.places["database"] > 10**6
    assert found.places["packages"] == 5000, "and nothing that a link leads to"
    assert found.places.keys() == PLACES.keys(), "the page has a word for each"
