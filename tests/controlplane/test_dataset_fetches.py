"""Datasets of a hub over REST: what is there, what is fetched, and the version that says where it is from."""

import tarfile
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.datasets import files
from flexmarl.controlplane.datasets.models import DatasetFetch, DatasetFile
from flexmarl.store.control import dataset_fetches
from tests.support.controlplane import key
from tests.support.hub_datasets import HUB, TEST, TRAIN, fetch_as_node, grade_school
from tests.support.hub_server import COMMIT, HubServer, hub_server

pytestmark = pytest.mark.django_db
CHOSEN = {"repository": "us/school", "configuration": "main", "splits": ["train", "test"]}
MAPPING = {"prompt": "question", "answer": "answer"}


@pytest.fixture
def hub(tmp_path: Path, settings) -> Iterator[HubServer]:
    settings.HUB = HUB
    with hub_server(HubServer({"us/school": grade_school(tmp_path / "school")})) as server:
        yield server


def post(api, path: str, body: object = None):
    return api.post(f"/api/v1/datasets{path}", body, format="json", HTTP_IDEMPOTENCY_KEY=key())


def errors(answer, status: int = 400) -> list[tuple[str, str]]:
    assert answer.status_code == status, answer.content
    return [(one["pointer"], one["code"]) for one in answer.json()["errors"]]


def fetched(api, hub: HubServer, folder: Path, **asked: Any) -> dict[str, Any]:
    made = post(api, "/fetches", {"repository": "us/school", **asked})
    assert made.status_code == 202, made.content
    fetch_as_node(store_connection(), hub.address, "", folder)
    return api.get(made.json()["url"]).json()


def test_a_listing_says_what_there_is_at_one_commit(api, hub: HubServer, tmp_path: Path) -> None:
    found = fetched(api, hub, tmp_path / "node")
    assert (found["state"], found["commit"], found["licence"], found["file"]) == ("done", COMMIT, "mit", None)
    main, pictures = found["configurations"]
    assert [(one["name"], one["files"]) for one in main["splits"]] == [("train", 2), ("test", 1)]
    assert "pictures/one.png is none of .jsonl" in pictures["refused"]
    assert [one["path"] for one in found["left_out"]] == ["school.py"]


def test_splits_become_a_version_that_says_where_it_is_from(api, editor, hub: HubServer, tmp_path: Path) -> None:
    found = fetched(api, hub, tmp_path / "node", revision=COMMIT, **{n: CHOSEN[n] for n in ("configuration", "splits")})
    assert (found["state"], found["allowed_actions"]) == ("done", []), found["reason_text"]
    file = api.get(f"/api/v1/datasets/files/{found['file']}").json()
    assert (file["columns"], file["mapping"], file["splits"]) == (["question", "answer"], MAPPING, ["train", "test"])
    assert file["split"] == {"type": "splits", "held_out": ["test"]}
    assert file["examples"][0]["question"] == "What is 0+1?"
    assert not DatasetFile.objects.exists()

    chosen = {"file": found["file"], "mapping": MAPPING, "split": file["split"]}
    preview = post(api, "/preview", chosen).json()
    assert (preview["training"], preview["held_out"]) == (20, 5)
    saved = post(api, "", {"name": "school", **chosen})
    assert saved.status_code == 201, saved.content
    version = saved.json()
    assert version["digest"] == preview["digest"]
    origin = version["file"]["origin"]
    assert {name: origin[name] for name in ("repository", "revision", "commit", "configuration", "licence")} == {
        "repository": "us/school", "revision": COMMIT, "commit": COMMIT, "configuration": "main", "licence": "mit",
    }  # fmt: skip
    bodies = {name: (tmp_path / "school" / name).read_bytes() for name in (*TRAIN, TEST)}
    assert [(one["path"], one["split"], one["digest"]) for one in origin["files"]] == [
        (name, "test" if name == TEST else "train", sha256(body).hexdigest()) for name, body in bodies.items()
    ]
    rows = api.get(f"{version['url']}/rows?limit=100&held_out=true").json()["results"]
    assert [row["messages"][0]["content"] for row in rows] == [f"What is {n}+1?" for n in range(100, 105)]

    archive = b"".join(api.get(f"{version['url']}/file").streaming_content)
    assert sha256(archive).hexdigest() == found["file"]
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        assert {name: packed.extractfile(name).read() for name in bodies} == bodies
    entries = AuditEntry.objects.filter(action__startswith="dataset.").order_by("id")
    assert [one.action for one in entries] == ["dataset.fetch", "dataset.save"]
    assert {one.actor for one in entries} == {editor}


def test_the_same_files_of_the_same_commit_are_the_same_file_and_no_new_version(
    api, hub: HubServer, tmp_path: Path
) -> None:
    made = []
    for name in ("one", "two"):
        found = fetched(api, hub, tmp_path / name, **CHOSEN)
        saved = post(api, "", {"name": "school", "file": found["file"], "mapping": MAPPING})
        assert saved.status_code == 201, (found, saved.content)
        made.append(saved.json())
    assert made[0]["number"] == made[1]["number"] == 1
    assert DatasetFile.objects.count() == 1


def test_rows_of_the_other_split_with_a_held_out_prompt_are_held_out_as_well(
    api, hub: HubServer, tmp_path: Path
) -> None:
    with (tmp_path / "school" / TRAIN[1]).open("a") as more:
        more.write('{"question": "What is  103+1?", "answer": "known"}\n')
    found = fetched(api, hub, tmp_path / "node", **CHOSEN)
    split = {"type": "splits", "held_out": ["test"]}
    preview = post(api, "/preview", {"file": found["file"], "mapping": MAPPING, "split": split}).json()
    assert (preview["training"], preview["held_out"]) == (20, 6)
    split["held_out"] = ["dev"]
    refused = post(api, "/preview", {"file": found["file"], "mapping": MAPPING, "split": split})
    assert errors(refused) == [("/split/held_out", "unknown_value")]
    assert refused.json()["errors"][0]["hint"] == "Legal: train, test."


def test_a_bad_row_is_named_by_its_file_and_line(api, hub: HubServer, tmp_path: Path) -> None:
    with (tmp_path / "school" / TRAIN[1]).open("a") as more:
        more.write('{"question": "", "answer": "x"}\n')
    found = fetched(api, hub, tmp_path / "node", **CHOSEN)
    refused = post(api, "", {"name": "school", "file": found["file"], "mapping": MAPPING})
    assert errors(refused) == [("/file/11/question", "no_text")]
    assert refused.json()["errors"][0]["detail"].startswith("main/train-00001-of-00002.jsonl, line 11:")


def test_a_failed_fetch_says_why(api, hub: HubServer, tmp_path: Path, settings) -> None:
    assert fetched(api, hub, tmp_path / "one", revision="v9")["reason"] == "hub_no_revision"
    settings.MOST_DATASET_BYTES = 100
    found = fetched(api, hub, tmp_path / "two", **CHOSEN)
    assert (found["state"], found["reason"]) == ("failed", "too_large")
    assert "FLEXMARL_MOST_DATASET_MIB" in found["reason_text"]


def test_a_cancelled_fetch_ends_and_what_it_brought_goes(api, hub: HubServer) -> None:
    row = post(api, "/fetches", CHOSEN).json()
    taken = dataset_fetches.take(store_connection(), "box", 15.0)
    assert dataset_fetches.put_part(store_connection(), taken, 0, b"x", 15.0)
    assert dataset_fetches.goes_on(store_connection(), taken, ("fetching", 5, 10), 15.0)
    row = api.get(row["url"]).json()
    assert (row["now"], row["done_bytes"], row["bytes"]) == ("fetching", 5, 10)
    assert post(api, f"/fetches/{row['id']}/actions/cancel").json()["state"] == "cancelled"
    assert dataset_fetches.part(store_connection(), taken.id, 0) is None
    for late in (
        dataset_fetches.goes_on(store_connection(), taken, ("storing", 1, 1), 15.0),
        dataset_fetches.put_part(store_connection(), taken, 1, b"x", 15.0),
        dataset_fetches.done(store_connection(), taken, {}, "a" * 64, 1),
    ):
        assert not late
    again = post(api, f"/fetches/{row['id']}/actions/cancel")
    assert again.status_code == 409
    assert dataset_fetches.part(store_connection(), taken.id, 1) is None


def test_a_fetch_whose_node_goes_away_is_begun_again_and_given_up_by_name(api, hub: HubServer) -> None:
    url = post(api, "/fetches", CHOSEN).json()["url"]
    for takes in range(1, dataset_fetches.MOST_TAKES + 1):
        taken = dataset_fetches.take(store_connection(), "box", -1.0)
        assert taken.takes == takes
        assert dataset_fetches.part(store_connection(), taken.id, 0) is None, "a new take begins without parts"
        assert dataset_fetches.put_part(store_connection(), taken, 0, b"x", -1.0)
    assert dataset_fetches.take(store_connection(), "box", 15.0) is None
    row = api.get(url).json()
    assert (row["state"], row["reason"], "3 times" in row["reason_text"]) == ("failed", "gave_up", True)


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        ({"repository": "a/b/c"}, ("/repository", "invalid")),
        ({"repository": "a/b", "secret": "no"}, ("/secret", "invalid")),
        ({"repository": "a/b", "revision": "-x"}, ("/revision", "invalid")),
        ({"repository": "a/b", "configuration": "main"}, ("/splits", "invalid")),
        ({"repository": "a/b", "configuration": "main", "splits": ["x", "x"]}, ("/splits", "invalid")),
    ],
)
def test_what_cannot_be_asked_is_refused_with_field_and_rule(api, hub: HubServer, asked, refused) -> None:
    found = errors(post(api, "/fetches", asked))
    assert [pointer for pointer, _ in found] == [refused[0]], found
    assert not DatasetFetch.objects.exists()


def test_without_a_hub_the_setting_is_named(api, settings) -> None:
    settings.HUB = ""
    answer = post(api, "/fetches", {"repository": "a/b"})
    assert errors(answer) == [("/repository", "not_available")]
    assert "FLEXMARL_HUB" in answer.json()["errors"][0]["detail"]


def test_what_no_version_is_made_of_goes_after_a_day_and_the_rest_stays(api, hub: HubServer, tmp_path: Path) -> None:
    kept = fetched(api, hub, tmp_path / "one", **CHOSEN)
    version = post(api, "", {"name": "school", "file": kept["file"], "mapping": MAPPING}).json()
    unused = fetched(api, hub, tmp_path / "two", **{**CHOSEN, "splits": ["train"]})
    DatasetFetch.objects.update(created_at=timezone.now() - files.KEEP - timedelta(minutes=1))
    fetched(api, hub, tmp_path / "three")
    assert api.get(unused["url"]).status_code == 404
    assert api.get(f"/api/v1/datasets/files/{unused['file']}").status_code == 404
    assert sha256(b"".join(api.get(f"{version['url']}/file").streaming_content)).hexdigest() == kept["file"]
