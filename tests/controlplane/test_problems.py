"""Every refusal is an RFC 9457 problem, also the ones nobody thought of."""

import pytest

from flexmarl.controlplane.common import problems
from flexmarl.controlplane.common.problems import FieldError, ProblemError
from flexmarl.controlplane.runs import queries
from tests.support.controlplane import key

pytestmark = pytest.mark.django_db
MEMBERS = {"type", "title", "status", "detail", "instance", "code", "request_id", "errors"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/api/v1/nothing", "", 404, "not_found"),
        ("GET", "/api/v2/runs", "", 404, "not_found"),
        ("DELETE", "/api/v1/runs", "", 405, "method_not_allowed"),
        ("POST", "/api/v1/runs/plan", "{not json", 400, "validation_error"),
        ("POST", "/api/v1/runs/plan", "[1]", 400, "validation_error"),
        ("POST", "/api/v1/tokens", "{}", 400, "validation_error"),
        ("GET", "/api/v1/operations/none", "", 404, "not_found"),
        ("GET", "/api/v1/templates/none", "", 404, "not_found"),
        ("GET", "/api/v1/templates?x=1", "", 400, "validation_error"),
    ],
)
def test_refusals_have_all_members(api, method, path, body, status, code) -> None:
    answer = api.generic(method, path, body, "application/json")
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    assert answer["Content-Type"] == "application/problem+json"
    assert set(problem) >= MEMBERS
    assert problem["status"] == status
    assert problem["type"] == "urn:flexmarl:problem:" + code.replace("_", "-")
    assert problem["instance"] == f"/requests/{answer['X-Request-ID']}"


def test_another_media_type_is_refused(api) -> None:
    answer = api.generic("POST", "/api/v1/runs/plan", "a=b", "application/x-www-form-urlencoded")
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


def test_a_method_that_is_not_there_names_the_others(api) -> None:
    assert set(api.delete("/api/v1/runs")["Allow"].split(", ")) == {"GET", "POST", "HEAD", "OPTIONS"}


def test_a_browser_that_asks_for_html_gets_json(api) -> None:
    answer = api.get("/api/v1/me", headers={"Accept": "text/html"})
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")


def test_a_failure_of_the_platform_is_a_problem_that_tells_nothing_inner(api, monkeypatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(queries, "find_run", fail)
    answer = api.get("/api/v1/runs/x")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert b"secret" not in answer.content


def test_nested_errors_point_into_the_body(api) -> None:
    errors = api.post("/api/v1/tokens", {"name": "x", "scopes": [{}], "expires_in_days": 0}).json()["errors"]
    assert {error["pointer"] for error in errors} == {"/scopes/0", "/expires_in_days"}


def _kinds(base: type[ProblemError]) -> list[type[ProblemError]]:
    return [base, *(kind for child in base.__subclasses__() for kind in _kinds(child))]


@pytest.mark.parametrize(
    ("body", "pointer", "rule"),
    [
        ({"mapping": "question"}, "/mapping", "mapping must be an object, such as {}."),
        ({"mapping": {"prompt": "a"}, "split": 0.1}, "/split", "split must be an object, such as {}."),
        (
            {"mapping": {}},
            "/mapping",
            "mapping: name the column of the prompt, of the messages or of the request, one of the three.",
        ),
    ],
)
def test_values_of_another_kind_are_refused_in_plain_words(api, body, pointer, rule) -> None:
    answer = api.post("/api/v1/datasets/preview", {"file": "0" * 64, **body})
    assert [(one["pointer"], one["detail"]) for one in answer.json()["errors"]] == [(pointer, rule)]


def test_a_word_that_is_no_choice_is_answered_with_the_legal_ones(api) -> None:
    run = api.post("/api/v1/runs", {"template": "hot_cold"}, headers={"Idempotency-Key": key()}).json()
    for value in ("soft", 3):
        refused = api.post(f"/api/v1/runs/{run['id']}/actions/pause", {"mode": value}).json()["errors"]
        assert [(one["pointer"], one["code"]) for one in refused] == [("/mode", "invalid_choice")]
        assert refused[0]["detail"] == f'"{value}" is not legal. Legal values: drain, freeze.'


def test_codes_name_one_status_each() -> None:
    seen: dict[str, int] = {}
    for kind in _kinds(ProblemError):
        assert seen.setdefault(kind.code, kind.status) == kind.status


def test_a_problem_renders_what_it_was_given() -> None:
    problem = problems.ValidationProblem("No.", errors=[FieldError("/a", "c", "d", "h")], extra={"state": "x"})
    body = problems.render(problem, "r").body
    assert body["errors"] == [{"pointer": "/a", "code": "c", "detail": "d", "hint": "h", "location": "body"}]
    assert body["state"] == "x"
