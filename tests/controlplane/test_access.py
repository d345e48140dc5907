"""Who may do what: tokens, roles, default deny, request ids, limits."""

from datetime import timedelta

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import URLPattern
from django.utils import timezone
from rest_framework.test import APIClient

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.accounts import actions, brake, tokens
from flexmarl.controlplane.accounts.choices import PROJECT_SCOPES_OF, SCOPES_OF, ProjectRole, Role
from flexmarl.controlplane.accounts.models import ApiToken, Membership, Project, User
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.api import urlpatterns
from flexmarl.controlplane.common.api.permissions import PUBLIC, SIGNED_IN
from flexmarl.controlplane.common.scopes import Scope
from tests.support.controlplane import PASSWORD, SPEC, key

pytestmark = pytest.mark.django_db

ROLES = [*Role, *ProjectRole]
HELD = {role: SCOPES_OF[role] for role in Role} | {
    role: PROJECT_SCOPES_OF[role] | SCOPES_OF[Role.MEMBER] for role in ProjectRole
}


def test_a_token_is_stored_as_a_hash_and_shown_once(api) -> None:
    made = api.post("/api/v1/tokens", {"name": "laptop", "scopes": ["runs:read"]}).json()
    text = made["token"]
    assert text.startswith("fmx_")
    stored = ApiToken.objects.get(pk=made["id"])
    secret = text.split(".")[1]
    assert secret not in str(vars(stored))
    assert tokens.matches(secret, stored.secret_hash)
    assert "token" not in api.get(f"/api/v1/tokens/{made['id']}").json()
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    assert client.get("/api/v1/runs").status_code == 200
    assert client.get("/api/v1/devices").status_code == 403


@pytest.mark.parametrize("text", ["", "x", "fmx_abc.def", "fmx_000000000000." + "A" * 43])
def test_an_unknown_token_is_refused_as_a_problem(db, text) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    answer = client.get("/api/v1/runs")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.json()["errors"][0]["code"] == "token_unknown"
    assert answer["WWW-Authenticate"].startswith("Bearer")


def refused_for(client) -> str:
    answer = client.get("/api/v1/me")
    assert answer.status_code == 401
    return answer.json()["errors"][0]["code"]


def test_a_revoked_or_expired_token_is_refused(editor, client_of) -> None:
    client = client_of(editor)
    token = ApiToken.objects.get()
    ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert refused_for(client) == "token_expired"
    ApiToken.objects.update(expires_at=timezone.now() + timedelta(days=1))
    assert client.get("/api/v1/me").status_code == 200
    actions.revoke_token(actor_of_user(editor), token.id)
    assert refused_for(client) == "token_revoked"


def test_a_token_of_an_inactive_person_is_refused(editor, client_of) -> None:
    client = client_of(editor)
    User.objects.update(is_active=False)
    assert client.get("/api/v1/me").status_code == 401


def test_last_use_is_written_at_most_once_a_minute(editor, client_of, django_assert_num_queries) -> None:
    client = client_of(editor)
    client.get("/api/v1/me")
    first = ApiToken.objects.get().last_used_at
    client.get("/api/v1/me")
    assert ApiToken.objects.get().last_used_at == first
    ApiToken.objects.update(last_used_at=timezone.now() - timedelta(seconds=61))
    client.get("/api/v1/me")
    assert ApiToken.objects.get().last_used_at > first


def test_a_token_never_exceeds_its_owner(person, client_of) -> None:
    admin = person(Role.CLUSTER_ADMIN)
    client = client_of(admin, ["users:admin", "runs:read"])
    assert client.get("/api/v1/users").status_code == 200
    User.objects.filter(pk=admin.pk).update(role=Role.MEMBER)
    assert client.get("/api/v1/users").status_code == 403
    assert client.get("/api/v1/runs").status_code == 403
    Membership.objects.create(project=Project.objects.get(name="default"), user=admin, role=ProjectRole.VIEWER)
    assert client.get("/api/v1/runs").status_code == 200


def test_nobody_gives_a_token_a_scope_they_lack(api) -> None:
    answer = api.post("/api/v1/tokens", {"name": "x", "scopes": ["users:admin"]})
    assert (answer.status_code, answer.json()["required_scopes"]) == (403, ["users:admin"])
    answer = api.post("/api/v1/tokens", {"name": "x", "scopes": ["users:amin"]})
    assert answer.json()["errors"][0]["pointer"] == "/scopes/0"


def test_nobody_sees_or_revokes_the_tokens_of_others(api, admin_api, person, client_of) -> None:
    other = person(ProjectRole.EDITOR, "otto")
    client_of(other)
    token = ApiToken.objects.get(owner=other)
    assert api.get(f"/api/v1/tokens/{token.id}").status_code == 404
    assert api.delete(f"/api/v1/tokens/{token.id}").status_code == 404
    assert admin_api.delete(f"/api/v1/tokens/{token.id}").status_code == 204


def _views():
    def walk(patterns):
        for pattern in patterns:
            if isinstance(pattern, URLPattern):
                yield pattern.name, pattern.callback.view_class
            else:
                yield from walk(pattern.url_patterns)

    return list(walk(urlpatterns))


def test_every_method_of_every_view_declares_what_it_needs() -> None:
    """Default deny would refuse a forgotten one; this finds it before a user does."""
    for name, view in _views():
        methods = {m.upper() for m in ("get", "post", "put", "patch", "delete") if hasattr(view, m)}
        declared = getattr(view, "scopes", {})
        assert methods == set(declared), name
        for needed in declared.values():
            assert needed in {PUBLIC, SIGNED_IN} or isinstance(needed, Scope), name


def test_only_the_description_is_public() -> None:
    public = {name for name, view in _views() if PUBLIC in view.scopes.values()}
    assert public == {"api-openapi", "api-docs"}


REQUESTS = [
    ("GET", "/api/v1/runs", None, Scope.RUNS_READ),
    ("POST", "/api/v1/runs", {"spec": SPEC}, Scope.RUNS_WRITE),
    ("POST", "/api/v1/runs/plan", {"spec": SPEC}, Scope.RUNS_READ),
    ("POST", "/api/v1/runs/search", {}, Scope.RUNS_READ),
    ("POST", "/api/v1/runs/bulk", {"action": "stop", "ids": []}, Scope.RUNS_READ),
    ("PUT", "/api/v1/runs/by-external-id/job", {"spec": SPEC}, Scope.RUNS_WRITE),
    ("GET", "/api/v1/saved-views", None, Scope.RUNS_READ),
    ("POST", "/api/v1/saved-views", {"name": "v", "page": "runs"}, Scope.RUNS_READ),
    ("GET", "/api/v1/templates", None, Scope.RUNS_READ),
    ("GET", "/api/v1/transitions", None, Scope.RUNS_READ),
    ("GET", "/api/v1/experiments", None, Scope.RUNS_READ),
    ("POST", "/api/v1/experiments", {"name": "e"}, Scope.RUNS_WRITE),
    ("GET", "/api/v1/agents", None, Scope.RUNS_READ),
    ("GET", "/api/v1/devices", None, Scope.CLUSTER_READ),
    ("GET", "/api/v1/nodes", None, Scope.CLUSTER_READ),
    ("POST", "/api/v1/pools", {"name": "gpu"}, Scope.CLUSTER_ADMIN),
    ("GET", "/api/v1/users", None, Scope.USERS_ADMIN),
    ("GET", "/api/v1/me", None, None),
]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("method", "path", "body", "scope"), REQUESTS)
def test_roles_may_what_their_scopes_say(person, client_of, role, method, path, body, scope) -> None:
    client = client_of(person(role))
    answer = client.generic(
        method, path, __import__("json").dumps(body or {}), "application/json", HTTP_IDEMPOTENCY_KEY=key()
    )
    allowed = scope is None or scope in HELD[role]
    assert (answer.status_code < 300) == allowed, answer.content
    if not allowed:
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert APIClient().generic(method, path, "{}", "application/json").status_code == 401


@pytest.mark.parametrize(
    ("role", "own", "expected"),
    [
        (ProjectRole.VIEWER, True, 403),
        (ProjectRole.EDITOR, True, 202),
        (ProjectRole.EDITOR, False, 403),
        (ProjectRole.OPERATOR, False, 202),
        (Role.CLUSTER_ADMIN, False, 202),
    ],
)
def test_acting_on_runs_of_others_is_for_operators(person, client_of, make_run, role, own, expected) -> None:
    caller, other = person(role), person(ProjectRole.EDITOR, "owner")
    run = make_run(other, RunStatus.RUNNING)
    if own:
        type(run).objects.update(owner=caller)
    assert client_of(caller).post(f"/api/v1/runs/{run.id}/actions/stop").status_code == expected


def test_the_first_admin_is_made_once(db) -> None:
    user = actions.create_first_admin("admin", PASSWORD)
    assert user is not None
    assert user.role == Role.CLUSTER_ADMIN
    assert actions.create_first_admin("admin2", PASSWORD) is None
    assert Client().login(username="admin", password=PASSWORD)


def test_every_answer_carries_a_request_id(api) -> None:
    assert api.get("/api/v1/me", headers={"X-Request-ID": "mine-1"})["X-Request-ID"] == "mine-1"
    made = api.get("/api/v1/me", headers={"X-Request-ID": "bad id\n"})["X-Request-ID"]
    assert len(made) == 36
    problem = api.get("/api/v1/nothing", headers={"X-Request-ID": "mine-2"})
    assert problem.status_code == 404
    assert (problem.json()["request_id"], problem.json()["instance"]) == ("mine-2", "/requests/mine-2")
    assert problem["API-Version"] == "1"


def test_requests_are_limited_per_token(editor, client_of, settings) -> None:
    settings.API_RATES = {**settings.API_RATES, "ordinary": 3}
    client, other = client_of(editor), client_of(editor)
    answers = [client.get("/api/v1/me") for _ in range(4)]
    assert [a.status_code for a in answers[:3]] == [200, 200, 200]
    assert answers[0]["RateLimit-Remaining"] == "2"
    assert answers[3].status_code == 429
    assert int(answers[3]["Retry-After"]) > 0
    assert answers[3].json()["code"] == "rate_limited"
    assert other.get("/api/v1/me").status_code == 200


def test_a_cache_that_is_away_limits_nobody(api, monkeypatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr(cache, "add", fail)
    assert api.get("/api/v1/me").status_code == 200


def test_preferences_are_ones_own(api) -> None:
    assert api.patch("/api/v1/me", {"theme": "dark", "time_zone": "Europe/Berlin"}).json()["theme"] == "dark"
    answer = api.patch("/api/v1/me", {"time_zone": "Mars/Base"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/time_zone")


def test_refusals_are_logged_with_request_and_run(api, caplog) -> None:
    caplog.set_level("INFO")
    api.get("/api/v1/runs/no-such-run", headers={"X-Request-ID": "mine-3"})
    [line] = [record.msg for record in caplog.records if "'event': 'request'" in str(record.msg)]
    assert (line["status"], line["run"], line["request_id"]) == (404, "no-such-run", "mine-3")


def sign_in(client: Client, username: str, password: str, address: str = "10.0.0.1") -> bool:
    body = {"username": username, "password": password}
    return client.post("/sign-in", body, REMOTE_ADDR=address).status_code == 302


def test_guessing_passwords_is_braked_per_name_and_address(person, client) -> None:
    person(ProjectRole.EDITOR, "edith"), person(ProjectRole.EDITOR, "otto")
    assert sign_in(client, "edith", PASSWORD)
    for _ in range(brake.PAIR.most):
        assert not sign_in(Client(), "edith", "wrong")
    assert not sign_in(Client(), "edith", PASSWORD), "the brake is on, even for the right one"
    assert sign_in(Client(), "edith", PASSWORD, address="10.0.0.2")
    assert sign_in(Client(), "otto", PASSWORD)


def test_people_sign_in_while_the_cache_is_away(person, monkeypatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ConnectionError("away")

    person(ProjectRole.EDITOR, "edith")
    monkeypatch.setattr(cache, "add", fail)
    assert sign_in(Client(), "edith", PASSWORD)


def test_runs_of_other_projects_do_not_exist_for_those_outside(person, client_of, make_run) -> None:
    run = make_run(person(ProjectRole.EDITOR, "owner"))
    outside = client_of(person(ProjectRole.ADMIN, "outsider", "elsewhere"))
    assert outside.get("/api/v1/runs").json()["results"] == []
    for path in (
        "",
        "/series",
        "/trajectories",
        "/timeline",
        "/events",
        "/consistency",
        "/checkpoints",
        "/versions",
        "/attempts",
        "/operations",
        "/notes",
    ):
        assert outside.get(f"/api/v1/runs/{run.id}{path}").status_code == 404, path
    assert outside.post(f"/api/v1/runs/{run.id}/actions/start").status_code == 404
    assert outside.post("/api/v1/runs", {"spec": SPEC}, headers={"Idempotency-Key": key()}).status_code == 403
