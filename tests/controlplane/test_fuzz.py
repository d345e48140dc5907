"""Values that break careless code, put into every parameter, path and member: refused or answered, never a failure."""

import json

import pytest
from django.urls import get_resolver, reverse

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.api import urlpatterns
from tests.support.controlplane import SPEC, key
from tests.support.forms import form
from tests.support.played import play

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

TEXTS = ["\x00", "a\x00b", "9" * 40, "-1", "NaN", "Infinity", "1e400", "%", "💥" * 300, "'", "..", "", " ", "\ud800"]
VALUES = [*TEXTS, None, True, -1, 2**70, 1.5, [], [None], {}, {"a": {"b": [1]}}, {"\x00": "\x00"}]
APART = form(short=6, full=1)
"""Each parameter, path and member gets every third value, beginning at another one than its neighbour."""
DEEP: object = None
for _ in range(200):
    DEEP = {"a": DEEP}


def share(values: list, number: int) -> list:
    return values[number % APART :: APART]


@pytest.fixture
def run(editor, make_run):
    run = make_run(editor, RunStatus.RUNNING)
    play(run)
    return run


def fine(answer, *what: object) -> None:
    assert answer.status_code < 500, (*what, answer.content[:300])


def views():
    return [(pattern.name, pattern.callback.view_class) for pattern in urlpatterns]


def arguments(name: str, run) -> dict[str, str]:
    known = {
        "run_id": run.key, "name": "default", "action": "cordon", "verb": "pause", "trajectory_id": "0-0-1",
        "device_id": "box.cpu0", "operation_id": str(run.id), "user_id": str(run.owner_id), "token_id": str(run.id),
        "experiment_id": str(run.id), "agent_id": str(run.id), "team_id": str(run.id), "number": "1",
        "draw": "1", "step": "3", "role": "speaker", "entry_id": str(run.id), "project": "default",
        "external_id": "job-1", "view_id": str(run.id), "simulation_id": str(run.id), "check_id": str(run.id),
        "model_id": str(run.id), "upload_id": str(run.id), "file": "config.json",
        "dataset_id": str(run.id), "suite_id": str(run.id), "evaluation_id": str(run.id), "place": "1",
        "fetch_id": str(run.id), "digest": "0a" * 32, "row_set_id": str(run.id), "join_id": str(run.id),
        "package_id": str(run.id), "sweep_id": str(run.id), "session_id": str(run.id), "job": str(run.id),
        "key_id": str(run.id),
    }  # fmt: skip
    [(_, names)] = get_resolver().reverse_dict.getlist(name)[0][0]
    return {argument: known[argument] for argument in names}


def test_parameters(admin_api, run) -> None:
    tried = number = 0
    for name, view in views():
        if "GET" not in getattr(view, "scopes", {}) or not hasattr(view, "parameters_of"):
            continue
        path = reverse(name, kwargs=arguments(name, run))
        for parameter in view().parameters_of("GET"):
            number += 1
            for text in share(TEXTS, number):
                query = {parameter.name: text.encode("utf-8", "surrogatepass")}
                needed = {"names": "reward/team"} if name == "api-run-series-data" else {}
                fine(admin_api.get(path, needed | query), path, parameter.name, text)
                tried += 1
    assert tried > 500


def test_paths(admin_api, run) -> None:
    for name, _ in views():
        good = arguments(name, run)
        path = reverse(name, kwargs=good)
        for argument, value in good.items():
            for text in ("%00", "a%00b", "%ff", "%F0%9F%92%A5", "9" * 40, "..%2f", "%27", "0" * 300):
                bad = path.replace(value, text)
                fine(admin_api.get(bad), bad, argument)


BODIES = [
    ("POST", "/api/v1/runs", {"spec": SPEC, "name": "n", "notes": "x", "overrides": {}, "experiment": "e"}),
    ("POST", "/api/v1/runs", {"yaml": "a: 1", "template": "t", "preset": "p", "start": False}),
    ("POST", "/api/v1/runs/plan", {"spec": SPEC, "overrides": {}, "yaml": ""}),
    ("PATCH", "/api/v1/runs/{run}", {"name": "n", "notes": "x"}),
    ("POST", "/api/v1/runs/{run}/actions/pause", {"reason": "r", "mode": "freeze", "hold_s": 5}),
    ("POST", "/api/v1/runs/{run}/actions/clone", {"name": "n", "overrides": {}, "spec": {}, "project": "default"}),
    ("POST", "/api/v1/runs", {"spec": SPEC, "tags": ["t"], "priority": 1, "plan_token": "x", "project": "default"}),
    ("PUT", "/api/v1/runs/by-external-id/job-1", {"spec": SPEC, "tags": ["t"]}),
    (
        "POST",
        "/api/v1/runs/search",
        {"filters": {"q": "x"}, "ordering": "name", "limit": 1, "cursor": "x", "fields": []},
    ),
    ("POST", "/api/v1/runs/search", {"filters": {"config.seed__gte": 1, "metric.reward/team:last__gte": 0}}),
    ("POST", "/api/v1/runs/bulk", {"action": "tag", "ids": ["x"], "tags": ["t"], "reason": "r", "dry_run": True}),
    ("POST", "/api/v1/runs/bulk", {"action": "stop", "filter": {"q": "x"}, "expected_count": 0}),
    (
        "POST",
        "/api/v1/saved-views",
        {"name": "n", "page": "runs", "query": "q=1", "shared": True, "project": "default"},
    ),
    ("POST", "/api/v1/experiments", {"name": "e", "description": "d"}),
    ("POST", "/api/v1/pools", {"name": "p", "description": "d", "note": "n", "is_default": False, "projects": []}),
    ("POST", "/api/v1/pools", {"name": "p", "provider": {"type": "slurm", "max_nodes": 2, "sbatch": ["--nice=5"]}}),
    ("POST", "/api/v1/pools", {"name": "r", "provider": {"type": "ray", "address": "h:1", "resources": {"h100": 1}}}),
    ("POST", "/api/v1/pools", {"name": "k", "provider": {"type": "kubernetes", "image": "i", "tolerations": ["t"]}}),
    ("PATCH", "/api/v1/pools/default", {"description": "d", "note": "n", "is_default": True, "projects": ["default"]}),
    ("PUT", "/api/v1/pools/default/quotas/default", {"devices": 3}),
    ("PUT", "/api/v1/projects/default/default-pool", {"pool": "default"}),
    ("POST", "/api/v1/nodes/box/actions/cordon", {"note": "n"}),
    ("POST", "/api/v1/nodes/box/actions/drain", {"mode": "wait", "note": "n", "dry_run": True}),
    ("POST", "/api/v1/devices/box.cpu0/actions/drain", {"mode": "stop", "deadline": "2030-01-01T00:00:00Z"}),
    ("POST", "/api/v1/runs/{run}/actions/set-priority", {"priority": 3}),
    ("POST", "/api/v1/runs/{run}/actions/move-pool", {"pool": "default", "training_pool": "default"}),
    ("PATCH", "/api/v1/devices/box.cpu0", {"pool": "default"}),
    ("POST", "/api/v1/tokens", {"name": "t", "scopes": ["runs:read"], "expires_in_days": 3}),
    ("POST", "/api/v1/users", {"username": "u", "password": "long-enough-words", "email": "", "role": "viewer"}),
    ("PATCH", "/api/v1/me", {"theme": "dark", "time_zone": "UTC"}),
]


@pytest.mark.parametrize(("method", "path", "body"), BODIES, ids=[f"{m} {p}" for m, p, _ in BODIES])
def test_bodies(admin_api, run, method, path, body) -> None:
    path = path.format(run=run.key)
    for number, member in enumerate(body):
        for value in share([*VALUES, DEEP], number + len(path)):
            text = json.dumps({**body, member: value})
            answer = admin_api.generic(
                method, path, text, "application/json", HTTP_IDEMPOTENCY_KEY=key(), HTTP_IF_MATCH="*"
            )
            fine(answer, member, value if value is not DEEP else "deep")
    for text in ("", "null", "[]", "1", '"x"', "{", "NaN", '{"a": NaN}', "\xff"):
        fine(admin_api.generic(method, path, text, "application/json", HTTP_IDEMPOTENCY_KEY=key()), text)


def test_specifications(admin_api) -> None:
    members = ("agents", "policies", "environment", "batch", "budget", "seed", "name", "resources", "mechanisms")
    for number, member in enumerate(members):
        for value in share([*VALUES, DEEP], number):
            body = json.dumps({"spec": {**SPEC, member: value}})
            fine(admin_api.generic("POST", "/api/v1/runs/plan", body, "application/json"), member)
    for number, inner in enumerate(("policy", "sampling", "trainable", "colour")):
        for value in share(VALUES, number):
            spec = {**SPEC, "agents": {"speaker": {inner: value}, "listener": {}}}
            body = json.dumps({"spec": spec, "overrides": {"policies": {"speaker": {"model": value}}}})
            fine(admin_api.generic("POST", "/api/v1/runs/plan", body, "application/json"), inner, value)
    for text in ("a: [", "&a [*a]", "? {}", "- 1", "a: 1\na: 2", "!!python/object:os.system x", "\t", "\x00"):
        fine(admin_api.post("/api/v1/runs/plan", {"yaml": text}), text)


def test_headers(admin_api, run) -> None:
    for text in ("x" * 500, "\x7f", '"', "W/", 'W/"x', "*"):
        answer = admin_api.post("/api/v1/runs", {"spec": SPEC}, headers={"Idempotency-Key": text})
        fine(answer, "Idempotency-Key", text)
        fine(admin_api.patch(f"/api/v1/runs/{run.key}", {"notes": "n"}, headers={"If-Match": text}), "If-Match", text)
