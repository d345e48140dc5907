"""Uploads of models over REST: declared, sent in pieces, gone on with, imported, and nobody else's business."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client, override_settings
from django.utils import timezone

from flexmarl.contracts.uploaded_models import PIECE_BYTES, upload_path, upload_token
from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.registry import uploads
from flexmarl.controlplane.registry.models import ModelUpload
from flexmarl.store.control import model_rows
from tests.support.controlplane import key, make_person

pytestmark = pytest.mark.django_db
WEIGHTS = b"0123456789"
FILES = [{"name": "config.json", "bytes": 2}, {"name": "model.safetensors", "bytes": len(WEIGHTS)}]


@pytest.fixture(autouse=True)
def home(tmp_path: Path):
    with override_settings(HOME=tmp_path, CLUSTER_KEY="cluster"):
        yield tmp_path


def post(api, path: str, body: dict[str, Any]):
    return api.post(f"/api/v1/{path}", body, format="json", HTTP_IDEMPOTENCY_KEY=key())


def begin(api, files: list[dict[str, Any]] | None = None, **more: object):
    return post(api, "models/uploads", {"files": FILES if files is None else files, **more})


def send(api, upload: str, name: str, offset: object, piece: bytes):
    path = f"/api/v1/models/uploads/{upload}/files/{name}?offset={offset}"
    return api.put(path, piece, content_type="application/octet-stream")


def complete(api, **more: object) -> str:
    upload = begin(api, **more).json()["id"]
    assert send(api, upload, "config.json", 0, b"{}").status_code == 200
    assert send(api, upload, "model.safetensors", 0, WEIGHTS).json()["received"] == len(WEIGHTS)
    return upload


def take(api, upload: str, name: str = "mine", **more: object):
    return post(api, "models", {"name": name, "source": {"type": "upload", "id": upload}, **more})


def error(answer, status: int = 400) -> tuple[str, str, str]:
    assert answer.status_code == status, answer.content
    found = answer.json()["errors"][0]
    return found["pointer"], found["code"], found["detail"] + " " + found["hint"]


def test_an_upload_is_sent_in_pieces_and_goes_on_where_it_stopped(api, home: Path) -> None:
    made = begin(api)
    assert made.status_code == 201, made.content
    body = made.json()
    assert (body["bytes"], body["received"], body["complete"]) == (12, 0, False)
    upload = body["id"]
    assert send(api, upload, "model.safetensors", 0, WEIGHTS[:4]).json()["received"] == 4
    for wrong in (0, 6, -1):
        refused = send(api, upload, "model.safetensors", wrong, b"xy")
        assert (refused.status_code, refused.json()["code"], refused.json()["received"]) == (409, "upload_offset", 4)
    assert send(api, upload, "model.safetensors", 4, WEIGHTS[4:]).json()["received"] == 10
    assert send(api, upload, "config.json", 0, b"{}").status_code == 200
    read = api.get(body["url"]).json()
    assert (read["received"], read["complete"]) == (12, True)
    assert (home / "uploads" / upload / "model.safetensors").read_bytes() == WEIGHTS
    assert [row["id"] for row in api.get("/api/v1/models/uploads").json()["results"]] == [upload]


@pytest.mark.parametrize(
    ("files", "pointer", "code", "said"),
    [
        ([], "/files", "invalid", ""),
        ([{"name": "config.json", "bytes": 2}], "/files", "required", "*.safetensors"),
        ([*FILES, {"name": "pytorch_model.bin", "bytes": 1}], "/files/2/name", "invalid", ".safetensors, .json"),
        ([*FILES, {"name": "../x.json", "bytes": 1}], "/files/2/name", "invalid", "cannot be"),
        ([*FILES, {"name": "a/b.json", "bytes": 1}], "/files/2/name", "invalid", "cannot be"),
        ([*FILES, {"name": ".x.json", "bytes": 1}], "/files/2/name", "invalid", "cannot be"),
        ([*FILES, {"name": "x.json", "bytes": -1}], "/files/2/bytes", "invalid", "0"),
        ([*FILES, {"name": "x.json", "bytes": "9"}], "/files/2/bytes", "invalid", "integer"),
        ([*FILES, {"name": "x.json"}], "/files/2/bytes", "required", "required"),
        ([*FILES, {"name": "x.json", "bytes": 1, "sha256": "xyz"}], "/files/2/sha256", "invalid", "cannot be"),
        ([*FILES, FILES[0]], "/files", "duplicate", "config.json"),
        ([*FILES, *({"name": f"{n}.txt", "bytes": 1} for n in range(500))], "/files", "too_many", "500"),
        ([FILES[0], {"name": "model.safetensors", "bytes": 2**30}], "/files", "quota_exceeded", "FLEXMARL_UPLOADS_GIB"),
    ],
)
@override_settings(UPLOADS_GIB=1)
def test_what_may_not_be_uploaded_is_refused_before_a_byte_is_sent(api, files, pointer, code, said) -> None:
    found = error(begin(api, files))
    assert found[0] == pointer
    assert found[1] == code or not files
    assert said in found[2]
    assert not ModelUpload.objects.exists()


def test_a_disk_that_is_full_is_told_at_the_door(api, monkeypatch) -> None:
    monkeypatch.setattr("flexmarl.controlplane.registry.upload_folders.free_bytes", lambda: 11)
    assert error(begin(api))[1] == "disk_full"


def test_only_what_was_declared_is_received(api) -> None:
    upload = begin(api).json()["id"]
    assert send(api, upload, "other.json", 0, b"{}").status_code == 404
    assert send(api, upload, "model.safetensors", 0, WEIGHTS + b"x").status_code == 413
    assert send(api, upload, "model.safetensors", "x", WEIGHTS).status_code == 400
    big = begin(api, [FILES[0], {"name": "model.safetensors", "bytes": 2 * PIECE_BYTES}]).json()["id"]
    assert send(api, big, "model.safetensors", 0, bytes(PIECE_BYTES + 1)).status_code == 413
    assert send(api, big, "model.safetensors", 0, bytes(PIECE_BYTES)).json()["received"] == PIECE_BYTES


def test_an_import_names_a_complete_upload_and_its_files_go_when_it_is_done(api, home: Path) -> None:
    half = begin(api).json()["id"]
    assert error(take(api, half))[:2] == ("/source/id", "incomplete")
    assert error(take(api, str(uuid4())))[:2] == ("/source/id", "unknown_value")
    assert error(take(api, "x"))[:2] == ("/source/id", "invalid")
    upload = complete(api)
    made = take(api, upload)
    assert made.status_code == 202, made.content
    source = made.json()["source"]
    assert [(file["name"], file["bytes"]) for file in source["files"]] == [
        ("config.json", 2),
        ("model.safetensors", 10),
    ]
    assert api.delete(f"/api/v1/models/uploads/{upload}").status_code == 409, "an import reads it"
    ModelUpload.objects.filter(pk=upload).update(expires_at=timezone.now() - timedelta(seconds=1))
    uploads.clear()
    assert ModelUpload.objects.filter(pk=upload).exists()
    taken = model_rows.take(store_connection(), "box", 15.0)
    assert taken.source["id"] == upload
    assert model_rows.done(store_connection(), taken, "a" * 64, {})
    assert uploads.clear() == 1
    assert [path.name for path in (home / "uploads").iterdir()] == []


def test_an_upload_goes_when_it_is_given_up_or_expires(api, home: Path) -> None:
    upload, other = complete(api), complete(api)
    assert api.delete(f"/api/v1/models/uploads/{upload}").status_code == 204
    assert api.get(f"/api/v1/models/uploads/{upload}").status_code == 404
    ModelUpload.objects.filter(pk=other).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert uploads.clear() == 1
    assert list((home / "uploads").iterdir()) == []
    actions = AuditEntry.objects.filter(target_kind="model_upload").values_list("action", flat=True)
    assert sorted(actions) == ["model_upload.create", "model_upload.create", "model_upload.delete"]


def test_a_repeated_request_begins_one_upload(api) -> None:
    once = key()
    answers = [
        api.post("/api/v1/models/uploads", {"files": FILES}, format="json", HTTP_IDEMPOTENCY_KEY=once) for _ in range(2)
    ]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert ModelUpload.objects.count() == 1


def test_others_neither_see_nor_write_nor_import_an_upload(api, client_of) -> None:
    Project.objects.get_or_create(name="other")
    upload = complete(api)
    path = f"/api/v1/models/uploads/{upload}"
    stranger = client_of(make_person("mallory", "editor", "other"))
    assert stranger.get("/api/v1/models/uploads").json()["results"] == []
    assert stranger.get(path).status_code == 404
    assert send(stranger, upload, "config.json", 2, b"").status_code == 404
    assert stranger.delete(path).status_code == 404
    assert begin(stranger, project="default").status_code == 403
    foreign, never = take(stranger, upload, project="other"), take(stranger, str(UUID(int=1)), project="other")
    assert error(foreign)[:2] == ("/source/id", "unknown_value")
    assert error(never)[2].replace(str(UUID(int=1)), upload) == error(foreign)[2], "it cannot be told from none"
    viewer = client_of(make_person("vera", "viewer"))
    assert viewer.get(path).status_code == 200
    assert (begin(viewer).status_code, send(viewer, upload, "config.json", 2, b"").status_code) == (403, 403)
    colleague = client_of(make_person("carl", "editor"))
    assert (send(colleague, upload, "config.json", 2, b"").status_code, colleague.delete(path).status_code) == (
        403,
        403,
    )


def test_an_upload_of_another_project_of_ones_own_is_not_imported(api, editor, admin_api) -> None:
    Project.objects.get_or_create(name="other")
    upload = complete(admin_api, project="other")
    assert error(take(admin_api, upload))[:2] == ("/source/id", "unknown_value")
    assert take(admin_api, upload, project="other").status_code == 202


def test_nodes_read_files_with_the_token_of_the_upload_alone(api) -> None:
    upload, other = complete(api), complete(api)
    node, path = Client(), upload_path(upload, "model.safetensors")

    def read(token: str, path: str = path):
        return node.get(path, headers={"Authorization": f"Bearer {token}"})

    async def body(answer) -> bytes:
        return b"".join([piece async for piece in answer])

    from asgiref.sync import async_to_sync

    right = upload_token("cluster", upload)
    assert async_to_sync(body)(read(right)) == WEIGHTS
    late = read(right, f"{path}?offset=7")
    assert (async_to_sync(body)(late), late["Content-Length"]) == (b"789", "3")
    for wrong in ("", "cluster", upload_token("cluster", other), upload_token("", upload)):
        assert read(wrong).status_code == 403
    assert read(right, upload_path(upload, "other.json")).status_code == 404
    with override_settings(CLUSTER_KEY=""):
        assert read(upload_token("", upload)).status_code == 403
