"""What strangers send by purpose: refused with a problem, at the price of its length, and never with 500."""

import base64
import contextlib
import json
import time

import pytest
import yaml
from django.test import Client

from flexmarl.contracts import yaml_text
from tests.support.controlplane import SPEC, key

pytestmark = pytest.mark.django_db
PROBLEM = "application/problem+json"
YAML = {
    "brackets": "a: " + "[" * 5000,
    "braces": "{a: " * 5000,
    "dashes": "- " * 5000,
    "alias": "a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]",
    "cycle": "a: &a [*a]",
    "long number": "seed: " + "1" * 5000,
    "wide number": "seed: 0x" + "f" * 5000,
    "no date": "name: 2001-99-99",
    "no time zone": "x: 9999-12-31T23:59:59-99:99",
    "no hexadecimal": "seed: 0x_",
    "no timestamp": "a: !!timestamp x",
    "huge scalar": "name: " + "a" * 1_000_000,
    "NUL": 'name: "\\0"',
    "surrogate": 'name: "\\ud800"',
    "NUL in a key": '"\\0": 1',
    "infinite": "budget: {seconds: .inf}",
    "no number": "budget: {target: {value: .nan}}",
    "tag": "x: !!python/object/apply:os.system [id]",
    "no truth value": "x: !!bool maybe",
    "no whole number": "x: !!int one",
    "number in base 60": "seed: 1" + ":1" * 90_000,
    "fraction in base 60": "seed: 1" + ":1" * 90_000 + ".5",
    "nested keys": "? " * 5000,
}


@pytest.mark.parametrize("text", YAML.values(), ids=YAML)
def test_hostile_yaml_is_refused(api, text) -> None:
    body = {"template": "reference_game", "yaml": text}
    answer = api.post("/api/v1/runs", body, headers={"Idempotency-Key": key()})
    assert (answer.status_code, answer["Content-Type"]) == (400, PROBLEM), answer.content[:300]
    planned = api.post("/api/v1/runs/plan", body)
    assert (planned.status_code, bool(planned.json()["errors"])) in {(200, True), (400, True)}


@pytest.mark.parametrize("text", YAML.values(), ids=YAML)
def test_hostile_yaml_is_refused_at_the_price_of_its_length(text) -> None:
    began = time.thread_time()
    with contextlib.suppress(yaml.YAMLError):  # a few are read here and refused by the types of a specification
        yaml_text.load(text)
    assert time.thread_time() - began < 1.0


BODIES = {
    "brackets": '{"spec": ' + "[" * 5000 + "]" * 5000 + "}",
    "deeper than Python": '{"spec": ' + "[" * 200_000 + "]" * 200_000 + "}",
    "long number": '{"spec": {"seed": ' + "1" * 5000 + "}}",
    "large number": '{"spec": {"seed": ' + "1" * 4000 + "}}",
    "exponent": '{"spec": {"seed": 1e999}}',
    "not a number": '{"spec": {"seed": NaN}}',
    "surrogate": '{"spec": {"name": "\\ud800"}}',
    "NUL": '{"template": "\\u0000"}',
    "not UTF-8": b'{"template": "\xff"}',
    "priority": '{"template": "reference_game", "priority": ' + "9" * 4000 + "}",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/runs/plan", "/api/v1/tokens", "/v1/chat/completions"])
def test_hostile_bodies_are_refused(api, path, body) -> None:
    answer = api.generic("POST", path, body, "application/json", headers={"Idempotency-Key": key()})
    assert answer.status_code in {400, 200} if path.endswith("plan") else answer.status_code == 400
    assert answer.status_code == 200 or path.startswith("/v1/") or answer["Content-Type"] == PROBLEM


HOSTILE_SETTINGS = {
    "parentheses": {"instructions": "{{ " + "(" * 3900 + "role" + ")" * 3900 + " }}"},
    "filters": {"instructions": "{{ role" + "|upper" * 240 + " }}"},
    "blocks": {"instructions": "{% if role %}" * 110 + "x" + "{% endif %}" * 110},
    "nested pattern": {"sampling": {"structured": {"type": "regex", "pattern": "(" * 1000 + ")" * 1000}}},
    "large pattern": {"sampling": {"structured": {"type": "regex", "pattern": "a{99999999999}"}}},
}


@pytest.mark.parametrize("settings", HOSTILE_SETTINGS.values(), ids=HOSTILE_SETTINGS)
def test_hostile_settings_of_an_agent_are_refused(api, settings) -> None:
    once = {"Idempotency-Key": key()}
    saved = api.post("/api/v1/agents", {"name": "mine", "settings": settings}, headers=once)
    assert (saved.status_code, saved["Content-Type"]) == (400, PROBLEM), saved.content[:300]
    planned = api.post("/api/v1/runs/plan", {"template": "chat_sums", "spec": {"agents": {"solver": settings}}})
    assert (planned.status_code, bool(planned.json()["errors"])) == (200, True)
    if text := settings.get("instructions"):
        asked = {"instructions": text, "role": "solver", "team": ["solver"], "environment": ""}
        assert api.post("/api/v1/agents/preview", asked).status_code == 400


ORDERINGS = {
    "runs?ordering=name": ("name,id", 2),
    "runs?ordering=-updated_at": ("-updated_at,-id", 2),
    "runs/{run}/trajectories": ("-draw,-member,-attempt", 3),
    "runs/{run}/decisions": ("-command,-seq,-ord", 3),
    "runs/{run}/transitions": ("-seq,-cut_at,-policy,-no", 4),
    "runs/{run}/swaps": ("-t1,-lease_id,-ord", 3),
    "runs/{run}/engine-moves": ("-seq,-ord", 2),
}
VALUES = ['{"t":"x"}', '{"$t":1}', "NaN", "1e999", "9" * 400, '"\\u0000"', "[]", "[" * 20_000]


@pytest.mark.parametrize("path", ORDERINGS)
def test_hostile_cursors_are_refused(api, editor, make_run, path) -> None:
    ordering, count = ORDERINGS[path]
    address = f"/api/v1/{path.format(run=make_run(editor).id)}"
    cursors = [f'["{ordering}",false,[{",".join([value] * count)}]]' for value in VALUES]
    for text in (*cursors, "[" * 20_000, '{"a": 1}', "7"):
        given = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        answer = api.get(f"{address}{'&' if '?' in address else '?'}cursor={given}")
        assert answer.status_code == 400, text[:80]
        assert [(e["pointer"], e["code"]) for e in answer.json()["errors"]] == [("cursor", "not_a_cursor")], text[:80]


@pytest.mark.parametrize("body", ["[" * 100_000, '{"spec": ' + "[" * 990 + "]" * 990 + "}", "[]", "5", "null", '"x"'])
def test_hostile_documents_of_the_form_are_refused(browser, body) -> None:
    assert browser.generic("POST", "/runs/new/text", body, "application/json").status_code == 400
    assert browser.generic("POST", "/runs/new/graph", body, "application/json").status_code == 204


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "GET", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/api", "/api/", "/api/none", "/api/v1/none", "/v1", "/v1/none"])
def test_unknown_paths_answer_problems_to_every_method(method, path) -> None:
    answer = Client(enforce_csrf_checks=True).generic(method, path)
    assert (answer.status_code, answer["Content-Type"]) == (404, PROBLEM)
    assert answer.json()["code"] == "not_found"


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/me", "/api/v1/runs/search", "/v1/models"])
def test_a_thousand_parameters_are_a_problem(api, path) -> None:
    for method in ("GET", "POST"):
        answer = api.generic(method, f"{path}?{'&'.join(f'p{n}=1' for n in range(2000))}")
        assert answer.status_code < 500, answer.content
    assert answer["Content-Type"] == PROBLEM or path.startswith("/v1/")


@pytest.mark.parametrize("path", ["/api/v1/me", "/api/none", "/v1/models", "/v1/none"])
def test_a_bad_host_answers_a_problem(path, settings) -> None:
    settings.ALLOWED_HOSTS = ["rl.example.org"]
    for method in ("GET", "POST"):
        answer = Client(enforce_csrf_checks=True).generic(method, path, headers={"Host": "evil.example"})
        assert (answer.status_code, answer["Content-Type"]) == (400, PROBLEM)
        assert answer.json()["code"] == "bad_host"
        assert "FLEXMARL_ALLOWED_HOSTS" in answer.json()["detail"]
    page = Client().get("/runs", headers={"Host": "evil.example"})
    assert (page.status_code, page["Content-Type"].startswith("text/html")) == (400, True)


def test_titles_are_whole(api) -> None:
    wrong = api.generic("POST", "/api/v1/runs/plan", "a=b", "application/x-www-form-urlencoded").json()
    assert (wrong["status"], wrong["title"]) == (415, "Unsupported media type")
    assert "application/json" in wrong["detail"]
    there = api.delete("/api/v1/runs").json()
    assert (there["status"], there["title"]) == (405, "Method not allowed")
    assert "GET" in there["detail"]
    assert "{" not in wrong["title"] + there["title"] + there["detail"]


@pytest.mark.parametrize(
    ("pointer", "spec"),
    [
        ("/seed", {"seed": "1"}),
        ("/seed", {"seed": True}),
        ("/seed", {"seed": 1.5}),
        ("/budget/seconds", {"budget": {"seconds": "60"}}),
        ("/budget/seconds", {"budget": {"seconds": True}}),
        ("/mechanisms/ordered", {"mechanisms": {"ordered": "true"}}),
        ("/mechanisms/ordered", {"mechanisms": {"ordered": 1}}),
        ("/name", {"name": 7}),
    ],
)
def test_a_specification_is_read_in_the_types_of_json(api, pointer, spec) -> None:
    answer = api.post("/api/v1/runs", {"spec": {**SPEC, **spec}}, headers={"Idempotency-Key": key()})
    assert answer.status_code == 400
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


def test_numbers_of_yaml_are_numbers(api) -> None:
    text = "policies: {speaker: {optimizer: {learning_rate: 1e-3}}}"
    planned = api.post("/api/v1/runs/plan", {"template": "reference_game", "yaml": text}).json()
    assert planned["errors"] == []
    assert planned["spec"]["policies"]["speaker"]["optimizer"]["learning_rate"] == 0.001


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("tokens", {"name": 7}, "/name"),
        ("tokens", {"name": "t", "expires_in_days": "7"}, "/expires_in_days"),
        ("tokens", {"name": "t", "expires_in_days": True}, "/expires_in_days"),
        ("tokens", {"name": "t", "scopes": [7]}, "/scopes/0"),
        ("runs", {"template": "reference_game", "start": "true"}, "/start"),
        ("runs", {"template": "reference_game", "start": 1}, "/start"),
        ("saved-views", {"name": "v", "page": "runs", "shared": "yes"}, "/shared"),
    ],
)
def test_bodies_are_read_in_the_types_of_json(api, path, body, pointer) -> None:
    answer = api.post(f"/api/v1/{path}", body, headers={"Idempotency-Key": key()})
    assert (answer.status_code, [e["pointer"] for e in answer.json()["errors"]]) == (400, [pointer])


@pytest.mark.parametrize("text", ["1_0", " 1", "1 ", "+1", "１", "true", "1.0", ""])
def test_whole_numbers_of_a_query_are_digits(api, text) -> None:
    assert api.get("/api/v1/runs", {"limit": text}).status_code == 400


def test_only_who_may_edit_a_run_adds_series_to_it(api, person, client_of, editor, make_run) -> None:
    run, line = make_run(editor), json.dumps({"name": "user/score", "step": 1, "value": 0.5})
    send = {"data": line, "content_type": "application/x-ndjson"}
    stranger, operator = client_of(person("editor", "otto")), client_of(person("operator", "olga"))
    refused = stranger.generic("POST", f"/api/v1/runs/{run.id}/series:batch", **send)
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    for client in (api, operator):
        assert client.generic("POST", f"/api/v1/runs/{run.id}/series:batch", **send).status_code == 200


def test_a_repeated_creation_of_a_token_makes_one_and_tells_no_secret(api) -> None:
    once = {"Idempotency-Key": key()}
    first = api.post("/api/v1/tokens", {"name": "ci"}, headers=once)
    again = api.post("/api/v1/tokens", {"name": "ci"}, headers=once)
    assert (first.status_code, again.status_code, again["Idempotency-Replayed"]) == (201, 201, "true")
    assert first.json()["token"].startswith("fmx_")
    assert again.json() == {**first.json(), "token": None}
    other = api.post("/api/v1/tokens", {"name": "other"}, headers=once)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    names = [row["name"] for row in api.get("/api/v1/tokens").json()["results"]]
    assert names.count("ci") == 1


def test_a_repeated_creation_of_a_person_tells_the_password_once(admin_api) -> None:
    once = {"Idempotency-Key": key()}
    first = admin_api.post("/api/v1/users", {"username": "una"}, headers=once).json()
    again = admin_api.post("/api/v1/users", {"username": "una"}, headers=once).json()
    assert first["password"]
    assert again == {**first, "password": None}
