"""A web process under load: what a client that went away wanted is cancelled, and no kind of request starves another.

A real server process over the test's database. A lock on a table makes every read of it slow.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from django.conf import settings as django_settings
from django.db import connection
from django.test import Client

from flexmarl.controlplane.common.store import database_url
from flexmarl.launcher.processes import free_port, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.services]
ROOT = Path(__file__).resolve().parents[2]
GONE_S = 2.0
QUICK_S = 3.0
"""The machine of a test may be busy; what starves waits for the lock, far longer."""
STATEMENT_S = 12
SHOWN = "SELECT application_name, state, query FROM pg_stat_activity"
RUNNING = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s AND state = 'active'"


@pytest.fixture
def server():
    port = free_port()
    environment = {
        **os.environ, "DATABASE_URL": _url(), "REDIS_URL": "",
        "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.development",
        "FLEXMARL_SECRET_KEY": django_settings.SECRET_KEY, "FLEXMARL_STATEMENT_TIMEOUT_API_S": str(STATEMENT_S),
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "manage.py"), "serve", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, cwd=ROOT)
    base = f"http://127.0.0.1:{port}"
    try:
        assert wait_until(lambda: timed(f"{base}/readyz")[0] == 200, 120)
        yield base
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def watcher():
    with psycopg.connect(database_url(), autocommit=True) as conn:
        yield conn


@pytest.fixture
def token(editor, client_of) -> dict[str, str]:
    return {"Authorization": client_of(editor)._credentials["HTTP_AUTHORIZATION"]}


def _url() -> str:
    values = connection.settings_dict
    return f"postgresql://{values['USER']}:{values['PASSWORD']}@{values['HOST']}:{values['PORT']}/{values['NAME']}"


def timed(url: str, headers: dict[str, str] | None = None) -> tuple[int, float, dict[str, str], bytes]:
    """Status, seconds, headers and body of an answer; status 0 when nobody answers."""
    begun = time.monotonic()
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, time.monotonic() - begun, _lower(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, time.monotonic() - begun, _lower(error.headers), error.read()
    except OSError:
        return 0, time.monotonic() - begun, {}, b""


def _lower(headers) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@contextmanager
def slow(table: str):
    """Make every read of a table wait."""
    with psycopg.connect(database_url()) as conn:
        conn.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield
        conn.rollback()


def running(watcher, purpose: str) -> int:
    return int(watcher.execute(RUNNING, [f"%.{purpose}"]).fetchone()[0])


def ask(base: str, path: str, headers: dict[str, str], method: str = "GET") -> socket.socket:
    """Send a request and do not wait for its answer."""
    host, port = base.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    line.sendall(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{head}\r\n".encode())
    return line


def test_what_a_client_that_went_away_asked_for_is_cancelled(server, watcher, token, editor) -> None:
    browser = Client()
    browser.force_login(editor)
    cookie = {"Cookie": f"flexmarl_session={browser.cookies['flexmarl_session'].value}"}
    for path, headers in (("/api/v1/runs", token), ("/runs", cookie)):
        assert timed(f"{server}{path}", headers)[0] == 200, timed(f"{server}{path}", headers)
    with slow("runs_run"):
        for path, headers, purpose in (("/api/v1/runs", token, "api"), ("/runs", cookie, "pages")):
            lines = [ask(server, path, headers) for _ in range(3)]
            assert wait_until(lambda purpose=purpose: running(watcher, purpose) == 3, 60), watcher.execute(
                SHOWN
            ).fetchall()
            for line in lines:
                line.close()
            assert wait_until(lambda purpose=purpose: running(watcher, purpose) == 0, GONE_S), f"{path} still reads"
    assert timed(f"{server}/api/v1/runs", token)[0] == 200, "its connection serves the next one"


def test_neither_health_nor_pages_wait_for_an_api_that_is_full(server, watcher, token, editor) -> None:
    browser = Client()
    browser.force_login(editor)
    cookie = {"Cookie": f"flexmarl_session={browser.cookies['flexmarl_session'].value}"}
    timed(f"{server}/settings/profile", cookie)  # the first page loads templates
    most = django_settings.DATABASE_LIMITS["api"].connections
    with ThreadPoolExecutor(most + 4) as pool, slow("agents_agentdefinition"):
        answers = [pool.submit(timed, f"{server}/api/v1/agents", token) for _ in range(most + 4)]
        assert wait_until(lambda: running(watcher, "api") == most, 60), "all connections of the API are in use"
        for path, headers in (("/healthz", None), ("/readyz", None), ("/settings/profile", cookie)):
            status, seconds, _, body = timed(f"{server}{path}", headers)
            assert (status, seconds < QUICK_S) == (200, True), (path, status, seconds, body)
        found = [answer.result() for answer in answers]
    codes = {(status, json.loads(body)["code"]) for status, _, _, body in found}
    assert codes == {(503, "query_timeout"), (503, "busy")}, codes
    assert all(headers.get("retry-after") for _, _, headers, _ in found)
    assert max(seconds for _, seconds, _, _ in found) < STATEMENT_S + QUICK_S
    assert timed(f"{server}/api/v1/runs", token)[0] == 200
