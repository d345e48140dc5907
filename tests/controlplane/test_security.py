"""What an attacker may try: forged requests, foreign frames and scripts, stolen cookies, secrets, hostile bodies."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings as configured
from django.core.management import call_command
from django.http import StreamingHttpResponse
from django.test import Client
from django.urls import URLPattern
from rest_framework.test import APIClient

from flexmarl.controlplane.accounts import actions, audit
from flexmarl.controlplane.accounts.choices import ProjectRole, Role
from flexmarl.controlplane.accounts.models import ApiToken, User
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.models import AuditEntry
from tests.support.controlplane import PASSWORD, key, make_person
from webui.urls import urlpatterns as pages

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[2]
PRODUCTION = {
    "FLEXMARL_SECRET_KEY": "s" * 60,
    "FLEXMARL_CLUSTER_KEY": "c",
    "DATABASE_URL": "postgresql://u@db/flexmarl",
    "REDIS_URL": "redis://r",
    "FLEXMARL_ALLOWED_HOSTS": "flexmarl.example.org",
}
PLAIN_PAGES = [str(p.pattern) for p in pages if isinstance(p, URLPattern) and "<" not in str(p.pattern)]
NOT_PAGES = {"sign-out", "runs/new/text"}
"""Answer POST only."""


@pytest.fixture
def admin():
    return make_person("ada", Role.CLUSTER_ADMIN)


def signed_in(user: User, **extra: object) -> Client:
    client = Client(**extra)  # type: ignore[arg-type]
    client.force_login(user)
    return client


# forged requests


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("post", "/api/v1/projects"),
        ("patch", "/api/v1/me"),
        ("put", "/api/v1/runs/by-external-id/x"),
        ("delete", "/api/v1/projects/default"),
        ("post", "/api/v1/ws-tickets"),
        ("post", "/api/v1/me/password"),
        ("post", "/sign-out"),
        ("post", "/runs/new/text"),
        ("post", "/sign-in"),
    ],
)
def test_a_session_changes_nothing_without_the_csrf_token(admin, method, path) -> None:
    client = signed_in(admin, enforce_csrf_checks=True)
    answer = getattr(client, method)(path, "{}", content_type="application/json")
    assert answer.status_code == 403
    assert client.get("/api/v1/me").status_code == 200


def test_a_session_with_the_csrf_token_may(admin) -> None:
    client = signed_in(admin, enforce_csrf_checks=True)
    client.get("/settings/profile")
    token = client.cookies[configured.CSRF_COOKIE_NAME].value
    answer = client.patch("/api/v1/me", '{"theme": "dark"}', "application/json", headers={"X-CSRFToken": token})
    assert answer.status_code == 200


def test_a_bearer_token_in_a_cookie_or_an_address_is_nothing(editor) -> None:
    _, text = actions.create_token(actor_of_user(editor), "t")
    client = APIClient()
    client.cookies["Authorization"] = text
    assert client.get("/api/v1/me").status_code == 401
    assert APIClient().get(f"/api/v1/me?token={text}").status_code in (400, 401)


# frames, scripts, cookies


@pytest.mark.parametrize("path", [p for p in PLAIN_PAGES if p not in NOT_PAGES] + ["no/such/page"])
def test_every_page_forbids_foreign_and_inline_code_and_frames(admin, path) -> None:
    answer = signed_in(admin).get(f"/{path}")
    if answer.status_code == 302:
        return
    policy = dict(
        part.strip().split(" ", 1) for part in answer["Content-Security-Policy"].split(";") if " " in part.strip()
    )
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["object-src"] == "'none'"
    assert policy["form-action"] == policy["base-uri"] == policy["style-src"] == "'self'"
    assert "unsafe" not in answer["Content-Security-Policy"]
    assert "http" not in answer["Content-Security-Policy"]
    assert (answer["X-Frame-Options"], answer["X-Content-Type-Options"]) == ("DENY", "nosniff")
    assert answer["Referrer-Policy"] == "same-origin"
    text = answer.content.decode()
    assert not re.search(r"<[^>]+\sstyle=|<[^>]+\son\w+=|<style|javascript:", text), "inline style or script"
    for tag in re.findall(r"<script[^>]*>", text):
        assert 'src="/static/' in tag or "application/json" in tag, tag


def test_cookies_of_a_session(admin) -> None:
    client = Client()
    client.post("/sign-in", {"username": "ada", "password": PASSWORD})
    session = client.cookies[configured.SESSION_COOKIE_NAME]
    assert session["httponly"]
    assert session["samesite"] == "Lax"
    assert client.cookies[configured.CSRF_COOKIE_NAME]["samesite"] == "Lax"


def test_production_sends_cookies_over_https_only() -> None:
    code = (
        "from flexmarl.controlplane.settings import production as p;"
        "print(p.SESSION_COOKIE_SECURE, p.CSRF_COOKIE_SECURE, p.SECURE_HSTS_SECONDS > 0)"
    )
    given = {**os.environ, **PRODUCTION, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform")])}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]


def test_signing_in_makes_a_new_session(admin) -> None:
    client = Client()
    client.get("/sign-in")
    session = client.session
    session["planted"] = "by somebody else"
    session.save()
    client.cookies[configured.SESSION_COOKIE_NAME] = session.session_key
    client.post("/sign-in", {"username": "ada", "password": PASSWORD})
    assert client.cookies[configured.SESSION_COOKIE_NAME].value != session.session_key
    fixed = Client()
    fixed.cookies[configured.SESSION_COOKIE_NAME] = session.session_key
    assert fixed.get("/api/v1/me").status_code == 401


def test_signing_out_ends_the_session_on_the_server(admin) -> None:
    client = Client()
    client.post("/sign-in", {"username": "ada", "password": PASSWORD})
    stolen = Client()
    stolen.cookies[configured.SESSION_COOKIE_NAME] = client.cookies[configured.SESSION_COOKIE_NAME].value
    assert stolen.get("/api/v1/me").status_code == 200
    client.post("/sign-out")
    assert stolen.get("/api/v1/me").status_code == 401


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_signing_in_leads_nowhere_else(admin, target) -> None:
    answer = Client().post("/sign-in", {"username": "ada", "password": PASSWORD, "next": target})
    assert (answer.status_code, answer["Location"]) == (302, "/")


def test_signing_in_leads_back_to_the_page(admin) -> None:
    answer = Client().post("/sign-in", {"username": "ada", "password": PASSWORD, "next": "/runs?state=failed"})
    assert answer["Location"] == "/runs?state=failed"


def test_an_unknown_host_is_refused(settings) -> None:
    settings.ALLOWED_HOSTS = ["flexmarl.example"]
    assert Client().get("/sign-in", headers={"Host": "evil.example"}).status_code == 400
    assert Client().get("/sign-in", headers={"Host": "flexmarl.example"}).status_code == 200


# secrets


PLANTED = ("Planted-Password-71x", "another-Planted-81z")


def plant(admin: User, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Send secrets every way the platform takes them. Returns their texts."""
    caplog.set_level("DEBUG")
    person = make_person("holder", ProjectRole.ADMIN, "alpha")
    made, token = actions.create_token(actor_of_user(person), "planted")
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    client.get("/api/v1/me")
    client.get("/api/v1/no/such/path")
    ticket = client.post("/api/v1/ws-tickets").json()["ticket"]
    browser = signed_in(admin)
    browser.post("/api/v1/users", {"username": "fresh", "password": PLANTED[0]}, "application/json")
    body = {"current": PASSWORD, "new": PLANTED[1]}
    assert browser.post("/api/v1/me/password", body, "application/json").status_code == 204
    browser.post("/api/v1/me/password", {**body, "extra": PLANTED[1]}, "application/json")
    reset = browser.post(f"/api/v1/users/{person.id}/actions/reset-password").json()["password"]
    Client().post("/sign-in", {"username": "fresh", "password": f"{PLANTED[0]}-wrong"})
    return [*PLANTED, token, token.split(".")[1], made.secret_hash, ticket, reset, PASSWORD]


def test_secrets_are_in_no_page_log_export_or_row(admin, caplog) -> None:
    secrets = plant(admin, caplog)
    client = signed_in(User.objects.get(pk=admin.pk))
    seen = {f"/{path}": client.get(f"/{path}").content.decode() for path in PLAIN_PAGES if path not in NOT_PAGES}
    for path in ("/api/v1/audit?limit=500", "/api/v1/users", "/api/v1/tokens?whose=all", "/api/v1/me", "/admin/"):
        seen[path] = client.get(path).content.decode()
    for model in ("apitoken", "user"):
        seen[model] = client.get(f"/admin/accounts/{model}/").content.decode()
    token = ApiToken.objects.get(name="planted")
    seen["admin detail"] = client.get(f"/admin/accounts/apitoken/{token.pk}/change/").content.decode()
    seen["export"] = _streamed(client.get("/api/v1/audit/export"))
    seen["log"] = caplog.text + "".join(str(record.__dict__) for record in caplog.records)
    seen["audit rows"] = str(list(AuditEntry.objects.values()))
    dumped = io.StringIO()
    call_command("dumpdata", "common", stdout=dumped)
    seen["stored answers"] = dumped.getvalue()
    found = [(place, secret) for place, text in seen.items() for secret in secrets if secret in text]
    assert found == []


def test_an_error_page_says_nothing_of_the_failure(admin, monkeypatch) -> None:
    from flexmarl.controlplane.accounts import queries

    def fail(*args: object) -> None:
        raise RuntimeError("postgresql://user:hunter2-planted@host/db")

    monkeypatch.setattr(queries, "me", fail)
    client = signed_in(admin, raise_request_exception=False)
    answers = (client.get("/settings/profile"), client.get("/api/v1/me"))
    for answer in answers:
        assert answer.status_code == 500
        assert "hunter2" not in answer.content.decode()
        assert "Traceback" not in answer.content.decode()
        assert answer["X-Request-ID"] in answer.content.decode()


def test_tokens_are_stored_as_keyed_hashes(editor, settings) -> None:
    token, text = actions.create_token(actor_of_user(editor), "t")
    secret = text.split(".")[1]
    assert token.secret_hash != hashlib.sha256(secret.encode()).hexdigest()
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    assert client.get("/api/v1/me").status_code == 200
    settings.TOKEN_PEPPER = "another"
    assert client.get("/api/v1/me").status_code == 401


def test_a_cell_of_the_export_is_no_formula(admin) -> None:
    make_person("=HYPERLINK", ProjectRole.VIEWER)
    actor = actor_of_user(User.objects.get(username="=HYPERLINK"))
    actions.create_token(actor, "@SUM(A1)")
    text = _streamed(signed_in(admin).get("/api/v1/audit/export?actor==HYPERLINK"))
    assert "'=HYPERLINK" in text
    assert "'@SUM(A1)" in text
    assert text.count("\r\n") == 2
    assert [audit.cell(value) for value in ("-1", "plain", "+x")] == ["'-1", "plain", "'+x"]


def _streamed(answer: StreamingHttpResponse) -> str:
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/csv")
    return b"".join(answer).decode()


# hostile bodies


@pytest.mark.parametrize(
    "body",
    [
        '{"theme": "dark\\u0000"}',
        '{"theme": "\\ud800"}',
        '{"theme": ' + "[" * 5000 + "]" * 5000 + "}",
        '{"theme": NaN}',
        "not json",
        "[]",
        '{"theme": {"a": 1}}',
        "\x00",
    ],
)
def test_a_body_that_cannot_be_held_is_a_problem(api, body) -> None:
    answer = api.generic("PATCH", "/api/v1/me", body, "application/json")
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")


def test_an_oversized_body_is_a_problem(api, settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    body = json.dumps({"name": "x" * 2000, "page": "runs"})
    answer = api.generic("POST", "/api/v1/saved-views", body, "application/json", headers={"Idempotency-Key": key()})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize("path", ["/api/v1/projects/a%00b", "/api/v1/projects/a%00b/members", "/runs/a%00b"])
def test_nul_in_a_path_is_nothing(admin, path) -> None:
    assert signed_in(admin).get(path).status_code == 404


def test_forms_that_are_uploads_are_refused(api) -> None:
    answer = api.post(
        "/api/v1/tokens", {"name": io.BytesIO(b"\x00")}, format=None, content_type="multipart/form-data; boundary=x"
    )
    assert answer.status_code == 415


def test_the_admin_site_changes_no_password(person, client) -> None:
    """A change there would be neither limited nor recorded."""
    admin = person("cluster_admin")
    before = admin.password
    client.force_login(admin)
    body = {"old_password": "anything", "new_password1": "a-new-one-1234", "new_password2": "a-new-one-1234"}
    for answer in (client.get("/admin/password_change/"), client.post("/admin/password_change/", body)):
        assert (answer.status_code, answer["Location"]) == (302, "/settings/profile")
    admin.refresh_from_db()
    assert admin.password == before
