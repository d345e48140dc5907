"""Two web processes behind one address: whichever answers, a caller sees one service, also when one of them is lost."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from flexmarl.launcher.processes import free_port, wait_until
from tests.support.infrastructure import remark
from tests.support.system import ROOT, Api, ApiError, System

pytestmark = [pytest.mark.services, pytest.mark.slow]

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")


@dataclass
class TwoWebs:
    """An installation with a second web process, and the address in front of both."""

    system: System
    second_url: str
    url: str
    second: "subprocess.Popen[bytes]"


@pytest.fixture
def webs(installations: Callable[[int], System], short_tmp: Path) -> Iterator[TwoWebs]:
    if HAPROXY is None:
        pytest.skip("haproxy is not installed")
    system, port, front = installations(0), free_port(), free_port()
    published = json.loads((system.home / "run" / "environment.json").read_text())
    environment = {**os.environ, **published, "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
    environment["DJANGO_SETTINGS_MODULE"] = "flexmarl.controlplane.settings.development"
    settings = short_tmp / "haproxy.cfg"
    settings.write_text(
        documented_proxy()
        .replace("bind :443 ssl crt /etc/haproxy/flexmarl.pem", f"bind 127.0.0.1:{front}")
        .replace("10.0.0.21:8000", system.url.removeprefix("http://"))
        .replace("10.0.0.22:8000", f"127.0.0.1:{port}")
    )
    serve = [sys.executable, "manage.py", "serve", "--port", str(port)]
    with (short_tmp / "out").open("wb") as out:
        second = subprocess.Popen(serve, cwd=ROOT, env=environment, stdout=out, stderr=out)
        proxy = subprocess.Popen([HAPROXY, "-f", str(settings)], stdout=out, stderr=out)
    url = f"http://127.0.0.1:{front}"
    try:
        eventually(lambda: {served(url) for _ in range(4)} == {"one", "two"})
        yield TwoWebs(system, f"http://127.0.0.1:{port}", url, second)
    finally:
        for process in (proxy, second):
            process.kill()
            process.wait(60)


def test_a_caller_notices_nothing_of_which_one_answers(webs: TwoWebs) -> None:
    browser = webs.system.signed_in()  # at the first one
    for _ in range(4):  # each in turn
        page = browser.open(f"{webs.url}/runs").read().decode()
        assert "/sign-in" not in re.findall(r'<form[^>]+action="([^"]+)"', page), "the session is known to both"
    api = webs.system.api()
    one, two = api, Api(webs.second_url, api.token)
    body = {"name": "twice", "template": "reference_game", "start": False}
    key = str(uuid.uuid4())
    with ThreadPoolExecutor(2) as threads:  # at the same moment, at both
        answers = list(threads.map(lambda client: repeated(client, body, key), (one, two)))
    assert answers[0] == answers[1]
    assert sum(run["name"] == "twice" for run in two.get("/runs")["results"]) == 1
    run = answers[0]["id"]
    cookie = "; ".join(f"{kept.name}={kept.value}" for kept in cookies(browser))
    address = webs.second_url.replace("http", "ws", 1)
    with connect(f"{address}/ws/v1/", additional_headers={"Cookie": cookie}, origin=webs.second_url) as socket:
        socket.send(json.dumps({"subscribe": [f"run:{run}"]}))
        socket.recv(timeout=60)
        one.call("PATCH", f"/runs/{run}", {"name": "told"}, **etag(one, run))
        told = json.loads(socket.recv(timeout=60))
        assert told["topic"] == f"run:{run}", "what the first one did is told by the second one's socket"


def test_one_that_is_lost_is_missed_by_nobody_who_asks_again(webs: TwoWebs) -> None:
    api = Api(webs.url, webs.system.api().token)
    webs.second.kill()
    began, failed = time.monotonic(), 0
    for _ in range(20):
        try:
            api.get("/runs")
        except (ApiError, OSError):
            failed += 1
    remark("after the loss of a web process", f"{failed} of 20 requests failed in {time.monotonic() - began:.1f} s")
    assert failed <= 2
    assert served(webs.url) == "one"


def documented_proxy() -> str:
    """Return the configuration of HAProxy that docs/operations.md recommends in front of web processes."""
    page = (ROOT / "docs" / "operations.md").read_text()
    return next(block for block in re.findall(r"```haproxy\n(.*?)```", page, re.DOTALL) if "httpchk" in block)


def repeated(client: Api, body: dict[str, Any], key: str) -> Any:
    """Ask until the same request at the other process has been answered."""
    while True:
        try:
            return client.call("POST", "/runs", body, Idempotency_Key=key)
        except ApiError as refused:
            if refused.problem.get("code") != "idempotency_in_progress":
                raise
        time.sleep(0.1)


def etag(client: Api, run: str) -> dict[str, str]:
    asked = urllib.request.Request(f"{client.base}/api/v1/runs/{run}")
    asked.add_header("Authorization", f"Bearer {client.token}")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return {"If_Match": answer.headers["ETag"]} if answer.headers["ETag"] else {}


def cookies(browser: urllib.request.OpenerDirector) -> Any:
    jar = next(one for one in browser.handlers if isinstance(one, urllib.request.HTTPCookieProcessor))
    return jar.cookiejar


def served(url: str) -> str:
    """Return which process answered."""
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=30) as answer:
            return str(answer.headers["X-Served-By"])
    except (urllib.error.URLError, OSError):
        return ""


def eventually(done: Callable[[], bool], timeout_s: float = 120.0) -> None:
    assert wait_until(done, timeout_s)
