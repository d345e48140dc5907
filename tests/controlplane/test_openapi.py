"""The OpenAPI document is valid, complete, and says what the answers really look like."""

import json
import re

import jsonschema
import pytest
from django.urls import URLPattern

from flexmarl.contracts.live import MicroBatchProgress, Progress
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.api import urlpatterns
from flexmarl.controlplane.playground.api import urls as openai
from flexmarl.controlplane.runs.api import serializers as run_shapes
from tests.support.controlplane import SPEC, key
from tests.support.played import play

pytestmark = pytest.mark.django_db


@pytest.fixture
def document(client):
    answer = client.get("/api/v1/openapi.json")
    assert answer.status_code == 200
    return json.loads(answer.content)


def keeps_answers(view) -> bool:
    return getattr(view, "stores_answers", False)


def test_the_document_is_openapi_3_1(document) -> None:
    from drf_spectacular.validation import validate_schema

    assert document["openapi"].startswith("3.1")
    validate_schema(document)


def test_every_operation_is_named_described_and_can_be_refused(document) -> None:
    views = {f"/api/v1/{pattern.pattern}": pattern.callback.view_class for pattern in urlpatterns}
    not_stored = {re.sub(r"<(\w+:)?(\w+)>", r"{\2}", path) for path, view in views.items() if not keeps_answers(view)}
    names = []
    for path, methods in document["paths"].items():
        assert path.startswith(("/api/v1/", "/v1/"))
        refusal = "application/problem+json" if path.startswith("/api/") else "application/json"
        for method, operation in methods.items():
            names.append(operation["operationId"])
            assert operation["description"], path
            assert list(operation["responses"]["default"]["content"]) == [refusal], path
            for security in operation["security"]:
                own = {"serving_key", "api_key"} if path.startswith("/v1/") else set()
                assert set(security) <= {"token", "session"} | own, path
            if method == "post" and path not in not_stored and path.startswith("/api/"):
                header = [p for p in operation["parameters"] if p["name"] == "Idempotency-Key"]
                assert header, path
                assert header[0].get("required", False) == (operation["operationId"] == "runs_create")
    assert len(names) == len(set(names))


def test_every_route_is_in_the_document(document) -> None:
    routes = sum(isinstance(pattern, URLPattern) for pattern in urlpatterns)
    dialect = openai.urlpatterns[:-1]
    assert len(document["paths"]) == routes - 2 + len(dialect), "all but the document and its viewer"
    assert {path for path in document["paths"] if path.startswith("/v1/")} == {
        "/v1/models", "/v1/models/{name}", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
        "/v1/messages/count_tokens",
    }  # fmt: skip


def test_progress_is_documented_member_by_member() -> None:
    assert list(run_shapes.ProgressSerializer().fields) == list(Progress.model_fields)
    assert list(run_shapes.MicroBatchProgressSerializer().fields) == list(MicroBatchProgress.model_fields)


def test_the_viewer_loads_nothing_from_elsewhere(client) -> None:
    page = client.get("/api/v1/docs")
    assert page.status_code == 200
    assert b"http://" not in page.content
    assert b"https://" not in page.content
    assert b"<script>" not in page.content
    assert "script-src 'self'" in page["Content-Security-Policy"]
    for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
        found = client.get(f"/static/drf_spectacular_sidecar/swagger-ui-dist/{name}")
        assert found.status_code == 200, name
    assert client.get("/api/v1/docs?script").status_code == 200


def test_answers_have_the_documented_shape(document, api, admin_api, editor, make_run) -> None:
    run = make_run(editor, RunStatus.RUNNING)
    played = play(run)
    admin_api.post("/api/v1/pools", {"name": "gpu"})
    admin_api.post("/api/v1/experiments", {"name": "e"})
    api.post("/api/v1/runs", {"spec": SPEC, "experiment": "e"}, headers={"Idempotency-Key": key()})
    operation = api.post(f"/api/v1/runs/{run.id}/actions/pause").json()
    view = api.post("/api/v1/saved-views", {"name": "v", "page": "runs", "shared": True}).json()
    base = f"/api/v1/runs/{run.id}"
    api.put(f"{base}/trajectories/{played.trajectory}/labels", {"label": "good"})
    for path, template in {
        "/api/v1/me": "/api/v1/me",
        "/api/v1/tokens": "/api/v1/tokens",
        "/api/v1/users": "/api/v1/users",
        "/api/v1/agents": "/api/v1/agents",
        "/api/v1/experiments": "/api/v1/experiments",
        "/api/v1/templates": "/api/v1/templates",
        "/api/v1/presets": "/api/v1/presets",
        "/api/v1/pools": "/api/v1/pools",
        "/api/v1/nodes": "/api/v1/nodes",
        "/api/v1/devices": "/api/v1/devices",
        "/api/v1/runs": "/api/v1/runs",
        "/api/v1/saved-views": "/api/v1/saved-views",
        view["url"]: "/api/v1/saved-views/{view_id}",
        base: "/api/v1/runs/{run_id}",
        f"{base}/series": "/api/v1/runs/{run_id}/series",
        f"{base}/series/data?names=reward/team,reward/agent": "/api/v1/runs/{run_id}/series/data",
        f"{base}/trajectories": "/api/v1/runs/{run_id}/trajectories",
        f"{base}/trajectories/facets": "/api/v1/runs/{run_id}/trajectories/facets",
        f"{base}/trajectories/compare?ids=1-0-1,1-1-1": "/api/v1/runs/{run_id}/trajectories/compare",
        f"{base}/trajectories/{played.trajectory}": "/api/v1/runs/{run_id}/trajectories/{trajectory_id}",
        f"{base}/trajectories/{played.trajectory}/tokens": "/api/v1/runs/{run_id}/trajectories/{trajectory_id}/tokens",
        f"{base}/trajectories/{played.trajectory}/labels": "/api/v1/runs/{run_id}/trajectories/{trajectory_id}/labels",
        f"{base}/groups/1": "/api/v1/runs/{run_id}/groups/{draw}",
        f"{base}/timeline": "/api/v1/runs/{run_id}/timeline",
        f"{base}/events?expand=body": "/api/v1/runs/{run_id}/events",
        f"{base}/consistency": "/api/v1/runs/{run_id}/consistency",
        f"{base}/checkpoints": "/api/v1/runs/{run_id}/checkpoints",
        f"{base}/checkpoints/3": "/api/v1/runs/{run_id}/checkpoints/{step}",
        f"{base}/lineage": "/api/v1/runs/{run_id}/lineage",
        f"{base}/versions": "/api/v1/runs/{run_id}/versions",
        operation["url"]: "/api/v1/operations/{operation_id}",
    }.items():
        answer = admin_api.get(path)
        assert answer.status_code == 200, (path, answer.content)
        check(document, template, "get", "200", answer.json())
    found = api.post("/api/v1/runs/search", {"filters": {"q": run.key}})
    check(document, "/api/v1/runs/search", "post", "200", found.json())
    many = api.post("/api/v1/runs/bulk", {"action": "tag", "ids": [run.key, "none"], "tags": ["t"]})
    check(document, "/api/v1/runs/bulk", "post", "200", many.json())
    copy = api.post(f"{base}/actions/clone", {})
    check(document, "/api/v1/runs/{run_id}/actions/clone", "post", "201", copy.json())
    pinned = api.post(f"{base}/checkpoints/3/actions/pin")
    check(document, "/api/v1/runs/{run_id}/checkpoints/{step}/actions/pin", "post", "200", pinned.json())
    fork = api.post(f"{base}/actions/fork", {"checkpoint": 3})
    check(document, "/api/v1/runs/{run_id}/actions/fork", "post", "201", fork.json())
    told = api.get(f"{fork.json()['url']}/lineage")
    check(document, "/api/v1/runs/{run_id}/lineage", "get", "200", told.json())
    refused = api.post(f"{base}/actions/start")
    check(document, "/api/v1/runs/{run_id}/actions/{verb}", "post", "default", refused.json())


def check(document, template, method, status, body) -> None:
    content = document["paths"][template][method]["responses"][status]["content"]
    schema = {**next(iter(content.values()))["schema"], "components": document["components"]}
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(body))
    assert not errors, (template, [(list(e.absolute_path), e.message[:200]) for e in errors[:5]])
    results = body.get("results", [body])
    assert results or "templates" in template, f"{template} was checked on nothing"
    declared = schema["$ref"].rpartition("/")[2]
    members = document["components"]["schemas"][declared]["properties"]
    assert set(body) <= set(members), f"{template} answers with members that the document does not name"
