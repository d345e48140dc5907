"""What the OpenAPI document promises beside shapes: names, needed parameters, examples, a typed specification."""

import json
import re

import jsonschema
import pytest
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator

from flexmarl.contracts.resolve import load_presets, load_templates, resolve
from flexmarl.contracts.status import SHOWN_STATUSES
from tests.support.controlplane import key

pytestmark = pytest.mark.django_db
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER


@pytest.fixture
def document(client):
    return client.get("/api/v1/openapi.json").json()


def operations(document):
    return [(f"{m.upper()} {p}", o) for p, methods in document["paths"].items() for m, o in methods.items()]


def errors(document, schema, value) -> list[str]:
    whole = {**schema, "components": document["components"]}
    found = jsonschema.Draft202012Validator(whole, format_checker=FORMATS).iter_errors(value)
    return [f"{list(error.absolute_path)}: {error.message[:160]}" for error in found]


def test_the_generator_warns_of_nothing() -> None:
    """Of two enums that get one name, for example: it tells them apart by a hash, such as `StatusD9fEnum`."""
    GENERATOR_STATS.reset()
    SchemaGenerator().get_schema(request=None, public=True)
    assert [*GENERATOR_STATS._warn_cache, *GENERATOR_STATS._error_cache] == []


def test_names_of_enums_say_what_they_are(document) -> None:
    schemas = document["components"]["schemas"]
    assert [name for name in schemas if re.search(r"[0-9A-F][0-9a-f]{2}Enum$", name)] == []
    assert schemas["RunDetail"]["properties"]["status"] == {"$ref": "#/components/schemas/RunStatus"}
    assert schemas["RunStatus"]["enum"] == list(SHOWN_STATUSES)


def test_every_operation_has_examples_that_are_legal(document) -> None:
    wrong, without = [], []
    for name, operation in operations(document):
        media = [*operation.get("requestBody", {}).get("content", {}).values()]
        media += [
            one
            for status, answer in operation["responses"].items()
            for one in answer.get("content", {}).values()
            if status != "default" and one["schema"].get("format") != "binary"
        ]
        needed = [one for one in operation.get("parameters", ()) if one.get("required")]
        shown = [one for one in (*media, *needed) if "example" in one]
        if len(shown) < len(media) + len(needed):
            without.append(name)
        wrong += [f"{name} {e}" for one in shown for e in errors(document, one["schema"], one["example"])]
    assert (without, wrong) == ([], []), "\n".join(wrong[:40])


def test_lines_of_examples_are_json(document) -> None:
    lines = {
        operation["operationId"]: json.loads(media["example"])
        for _, operation in operations(document)
        for kind, media in operation["responses"].get("200", {}).get("content", {}).items()
        if kind == "application/x-ndjson"
    }
    assert sorted(lines) == ["runs_logs", "runs_logs_export", "runs_series_export", "runs_trajectory_export"]
    assert "logprobs" in lines["runs_trajectory_export"]["turns"][0]


def test_what_a_view_needs_is_required(document, api) -> None:
    for path, missing in {
        "/api/v1/runs/{run_id}/series/data": "names",
        "/api/v1/runs/{run_id}/config-diff": "against",
        "/api/v1/runs/{run_id}/trajectories/compare": "ids",
    }.items():
        [parameter] = [one for one in document["paths"][path]["get"]["parameters"] if one["name"] == missing]
        assert parameter["required"], path


def test_if_match_is_told_where_it_is_honoured(document) -> None:
    told = {
        operation["operationId"]: header.get("required", False)
        for _, operation in operations(document)
        for header in operation.get("parameters", ())
        if header["name"] == "If-Match"
    }
    assert {name for name, needed in told.items() if needed} == {
        "pools_update", "pools_delete", "quotas_set", "quotas_delete", "nodes_update", "nodes_act", "devices_update",
        "devices_act",
    }  # fmt: skip
    assert {name for name, needed in told.items() if not needed} == {
        "runs_update", "experiments_update", "tokens_update", "tokens_revoke", "projects_update", "projects_delete",
        "members_update",
        "members_remove", "service_accounts_update", "users_update", "saved_views_update", "saved_views_delete",
        "nodes_drain", "devices_drain", "serving_keys_update", "serving_keys_revoke",
        "node_joins_approve", "node_joins_reject",
        "node_tokens_revoke", "node_tokens_rotate", "models_cancel", "models_archive", "models_restore",
        "packages_cancel", "packages_archive", "packages_restore", "datasets_archive", "datasets_restore",
        "datasets_fetch_cancel", "row_sets_archive", "row_sets_restore",
        "runs_replan_apply", "runs_replan_dismiss",
    }  # fmt: skip


def test_specifications_are_typed(document) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["RunDetail"]["properties"]["spec"] == {"$ref": "#/components/schemas/ExperimentSpec"}
    assert "PartialExperimentSpec" in str(schemas["NewRunRequest"]["properties"]["spec"])
    for name, template in load_templates().items():
        assert errors(document, schemas["ExperimentSpec"], resolve({}, template=name).document) == []
        assert errors(document, schemas["PartialExperimentSpec"], template.spec) == []
    for preset in load_presets().values():
        assert errors(document, schemas["PartialExperimentSpec"], preset.spec) == []
    for wrong in ({"seed": "1"}, {"seed": True}, {"sed": 1}, {"batch": {"tasks_per_step": 1.5}}):
        assert errors(document, schemas["PartialExperimentSpec"], wrong)


def test_partial_and_whole_have_the_same_members(document) -> None:
    schemas = document["components"]["schemas"]
    for name, whole in schemas.items():
        if name.startswith("Spec") and f"Partial{name}" in schemas:
            assert set(whole.get("properties", ())) == set(schemas[f"Partial{name}"].get("properties", ())), name


def test_written_examples_are_taken(document, api) -> None:
    for operation, path in {
        "runs_create": "/api/v1/runs",
        "runs_plan": "/api/v1/runs/plan",
        "tokens_create": "/api/v1/tokens",
    }.items():
        [shown] = [one for _, one in operations(document) if one["operationId"] == operation]
        body = shown["requestBody"]["content"]["application/json"]["example"]
        assert api.post(path, body, headers={"Idempotency-Key": key()}).status_code in {200, 201}, operation
