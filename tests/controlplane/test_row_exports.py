"""The rows of a run as one archive over REST: what an import takes, or a refusal that says what to do."""

import json

import pytest
from asgiref.sync import async_to_sync

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.row_sets import reading
from tests.controlplane.test_load import SEATS, story_lease
from tests.support.packing import parts
from tests.support.store_story import Story

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(editor, make_run):
    return make_run(editor, "running", agents=SEATS)


@pytest.fixture
def trained(run):
    """A step on two groups."""
    story = Story(store_connection(), run_id=run.no)
    story.lease = story_lease(store_connection(), run.no)
    lease_id = story.trainer("t1")
    story.settle(0, 1)
    story.cut(0, 0, 1)
    story.accumulate(lease_id, 0, "0:t1")
    story.step(lease_id, "0:t1", (0,), 1)
    return run


def downloaded(api, run) -> bytes:
    answer = api.get(f"/api/v1/runs/{run.id}/rows/archive")
    assert answer.status_code == 200, answer.content
    assert answer["Content-Disposition"] == f'attachment; filename="{run.key}-rows.tar"'

    async def read() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    body = async_to_sync(read)()
    assert len(body) == int(answer["Content-Length"])
    return body


def test_what_was_trained_comes_as_one_file_that_an_import_reads(api, trained, tmp_path) -> None:
    body = downloaded(api, trained)
    described = json.loads(dict(parts(body))["export.json"])
    assert (described["run"], described["rows"]) == (trained.key, 4)
    path = tmp_path / "rows.tar"
    path.write_bytes(body)
    with path.open("rb") as file:
        found = reading.read(file, 100)
    assert (found.about.run, len(found.rows)) == (trained.key, 4)


def test_a_run_without_a_trained_row_says_so(api, run) -> None:
    answer = api.get(f"/api/v1/runs/{run.id}/rows/archive")
    assert (answer.status_code, answer.json()["code"]) == (409, "invalid_state")
    assert "not been trained on any row yet" in answer.json()["detail"]
    assert answer.json()["state"] == "running"


@pytest.mark.parametrize(
    ("bound", "most"), [("MOST_DATASET_ROWS", 3), ("MOST_DATASET_BYTES", 100), ("MOST_DATASET_BYTES", 1000)]
)
def test_more_than_an_import_takes_is_refused_with_the_way_out(api, trained, settings, bound, most) -> None:
    """Of bytes: those of tokens while they are read, and those of the whole file."""
    setattr(settings, bound, most)
    answer = api.get(f"/api/v1/runs/{trained.id}/rows/archive")
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert f"manage.py export_rows {trained.key} FOLDER" in answer.json()["detail"]


def test_rows_whose_tokens_were_let_go_are_refused(api, trained) -> None:
    store_connection().execute("DELETE FROM store.sample WHERE run_id = %s AND member = 1", [trained.no])
    answer = api.get(f"/api/v1/runs/{trained.id}/rows/archive")
    assert (answer.status_code, answer.json()["code"]) == (409, "invalid_state")
    assert "not all kept" in answer.json()["detail"]
