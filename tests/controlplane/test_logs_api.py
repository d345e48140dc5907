"""Log lines over REST: cursor, filters, refusals, NDJSON, follow; and the feed that pages show."""

import asyncio
import json

import pytest
from asgiref.sync import async_to_sync

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts.callers import Caller
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.telemetry import queries
from flexmarl.controlplane.telemetry.live import logbook
from flexmarl.store.telemetry import logs
from flexmarl.store.telemetry.logs import LogFilter, LogLine
from tests.support.played import play

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(editor, make_run):
    run = make_run(editor, RunStatus.RUNNING)
    lines = [
        LogLine(run.no, 1000.0 + i, level, component, text, fields={"no": i})
        for i, (level, component, text) in enumerate(
            [
                ("info", "device", "child started"),
                ("warning", "engine", "slow request"),
                ("error", "node", "command failed"),
            ]
        )
    ]
    logs.put(store_connection(), run.no, lines)
    return run


def get(api, run, query="", status=200):
    answer = api.get(f"/api/v1/runs/{run.id}/logs{query}")
    assert answer.status_code == status, answer.content
    return answer.json()


def texts(found):
    return [row["text"] for row in found["results"]]


def test_pages_follow_a_cursor(api, run) -> None:
    first = get(api, run, "?after=0&limit=2")
    assert texts(first) == ["child started", "slow request"]
    rest = get(api, run, f"?after={first['next_after']}")
    assert texts(rest) == ["command failed"]
    assert get(api, run, f"?after={rest['next_after']}") == {"results": [], "next_after": rest["next_after"]}
    assert first["results"][0] | {"seq": 0} == {
        "seq": 0, "at": "1970-01-01T00:16:40.000Z", "level": "info", "component": "device", "agent": "", "node": "",
        "text": "child started", "fields": {"no": 0},
    }  # fmt: skip


def test_filters(api, run) -> None:
    assert texts(get(api, run, "?level=error&level=warning")) == ["slow request", "command failed"]
    assert texts(get(api, run, "?component=device")) == ["child started"]
    assert texts(get(api, run, "?q=SLOW")) == ["slow request"]
    assert texts(get(api, run, "?pattern=^c.*d$")) == ["child started", "command failed"]
    assert texts(get(api, run, "?until=1970-01-01T00:16:40.5Z")) == ["child started"]


def test_wrong_filters_are_refused_by_name(api, run) -> None:
    assert get(api, run, "?pattern=(", status=400)["errors"][0]["pointer"] == "pattern"
    assert get(api, run, "?level=loud", status=400)["errors"][0]["pointer"] == "level"
    assert get(api, run, "?limit=0", status=400)["errors"][0]["pointer"] == "limit"
    assert get(api, run, f"?q={'x' * 201}", status=400)["errors"][0]["pointer"] == "q"


def exported(api, run, query="") -> list[bytes]:
    """Return the pieces of a download, read as the server does: on the event loop."""
    answer = api.get(f"/api/v1/runs/{run.id}/logs/export{query}")
    assert (answer["Content-Type"], answer.is_async) == ("application/x-ndjson", True)

    async def read() -> list[bytes]:
        return [piece async for piece in answer.streaming_content]

    return async_to_sync(read)()


def test_everything_is_a_download_in_pieces(api, run, monkeypatch) -> None:
    monkeypatch.setattr(logbook, "MAX_LIMIT", 2)
    pieces = [[json.loads(line)["text"] for line in piece.splitlines()] for piece in exported(api, run)]
    assert pieces == [["child started", "slow request"], ["command failed"]]
    [piece] = exported(api, run, "?level=error")
    assert json.loads(piece)["text"] == "command failed"
    assert api.get(f"/api/v1/runs/{run.id}/logs/export?pattern=(").status_code == 400


def test_another_projects_lines_are_hidden(run, person, client_of) -> None:
    stranger = client_of(person("editor", "sue", project="other"))
    assert stranger.get(f"/api/v1/runs/{run.id}/logs").status_code == 404


def test_following_yields_what_comes_and_ends_when_access_ends(run, monkeypatch) -> None:
    told = [logs.page(store_connection(), run.no, LogFilter(), 9)[:2], []]

    async def next_lines(*_):
        if not told:
            raise logbook.ProblemError("gone")
        return told.pop(0)

    monkeypatch.setattr(logbook, "_next", next_lines)
    monkeypatch.setattr(logbook, "LOOK_S", 0.0)

    async def read():
        return [part async for part in logbook.follow(Caller(1), str(run.id), LogFilter(), 0)]

    [part] = asyncio.run(read())
    assert [json.loads(line)["text"] for line in part.splitlines()] == ["child started", "slow request"]


def test_the_feed_merges_history_and_lines_by_time(run) -> None:
    play(run)
    rows = queries.log_feed(run, LogFilter())
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert {row["source"] for row in rows} == {"note", "log"}
    assert rows[-1]["text"] == "Step 1 is done."
    assert {row["source"] for row in queries.log_feed(run, LogFilter(components=["history"]))} == {"note"}
    assert {row["component"] for row in queries.log_feed(run, LogFilter(components=["engine"]))} == {"engine"}
    assert [row["text"] for row in queries.log_feed(run, LogFilter(text="step 1"))] == ["Step 1 is done."]
    assert len(queries.log_feed(run, LogFilter(), limit=2)) == 2
    assert queries.log_origins(run)["components"] == ["history", "node", "device", "engine"]
