"""A web process over seeded rows for benchmarks, somebody who makes events in its runs, and a handle on the load."""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from harness import ROOT

from flexmarl.launcher.home import Home
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.launcher.processes import free_port, wait_until
from flexmarl.launcher.valkey import EmbeddedValkey

PASSWORD = "correct-horse-battery"
MIX = (
    "/api/v1/runs?limit=50",
    "/api/v1/runs/{key}",
    "/api/v1/runs/{key}/series/data?names=reward/team,reward/agent&x=step&max_points=300",
    "/api/v1/runs/{key}/trajectories?limit=50",
    "/api/v1/devices",
    "/api/v1/runs/{key}/events?limit=100",
)
"""What scripts read, in turns."""


class Site:
    """The running web process: its address, a signed-in cookie and a token."""

    def __init__(self, url: str, keys: list[str]) -> None:
        self.url, self.keys = url, keys
        self.cookie = sign_in(url)
        self.token = make_token(url, self.cookie)

    def get(self, path: str) -> Any:
        """Read JSON over REST."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def topics(self) -> list[str]:
        """Topics of the seeded runs."""
        return [f"run:{self.get(f'/api/v1/runs/{key}')['id']}" for key in self.keys]


def sign_in(url: str, username: str = "ada", password: str = PASSWORD) -> str:
    """Sign a person in and return their cookies."""
    jar = CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    page = opener.open(f"{url}/sign-in", timeout=10).read().decode()
    token = page.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
    form = {"username": username, "password": password, "csrfmiddlewaretoken": token}
    opener.open(f"{url}/sign-in", urllib.parse.urlencode(form).encode(), timeout=10).read()
    return "; ".join(f"{cookie.name}={cookie.value}" for cookie in jar)


def make_token(url: str, cookie: str) -> str:
    """Make a token as a page does."""
    csrf = next(part.partition("=")[2] for part in cookie.split("; ") if part.startswith("flexmarl_csrf="))
    headers = {"Cookie": cookie, "X-CSRFToken": csrf, "Content-Type": "application/json", "Referer": url}
    body = json.dumps({"name": f"load-{time.time_ns()}", "expires_in_days": 1}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/tokens", body, headers), timeout=10) as answer:
        return str(json.load(answer)["token"])


@contextmanager
def seeded_site() -> Iterator[Site]:
    """Start database, broker and one web process over seeded rows. The settings of this process then name them too."""
    with tempfile.TemporaryDirectory(prefix="flexmarl-web-") as folder:
        Path(folder).chmod(0o711)
        home = Home(Path(folder) / "home")
        home.prepare()
        postgres = EmbeddedPostgres(home, free_port(), {"fsync": "off", "shared_buffers": "64MB"})
        valkey = EmbeddedValkey(home, free_port())
        web = None
        try:
            postgres.start()
            valkey.start()
            os.environ.update(
                DATABASE_URL=postgres.url, REDIS_URL=valkey.url, SEED_PASSWORD=PASSWORD, FLEXMARL_HOME=str(home.root),
                DJANGO_SETTINGS_MODULE="flexmarl.controlplane.settings.development", FLEXMARL_SECRET_KEY="benchmark",
                FLEXMARL_API_REQUESTS_PER_MINUTE="1000000",
                PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "platform")]),
            )  # fmt: skip
            keys = json.loads(_run("-m", "tests.browser.seed_database").strip().splitlines()[-1])["keys"]
            port = free_port()
            web = subprocess.Popen([sys.executable, "manage.py", "serve", "--port", str(port)], cwd=ROOT)
            url = f"http://127.0.0.1:{port}"
            if not wait_until(lambda: _answers(url), 60):
                raise TimeoutError("the web process did not answer")
            yield Site(url, keys)
        finally:
            if web is not None:
                web.terminate()
                web.wait(15)
            valkey.stop()
            postgres.stop()


def _run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class LoadProcess:
    """The process of `web_load.py`."""

    def __init__(
        self, site_url: str, cookie: str, token: str, topics: list[str], paths: list[str], **orders: Any
    ) -> None:
        command = [sys.executable, str(Path(__file__).with_name("web_load.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        order = {"url": site_url, "cookie": cookie, "token": token, "topics": topics, "paths": paths, **orders}
        self._tell(order)
        self.ready = self._hear()["ready"]
        self.pid = self._process.pid

    def cut(self) -> float:
        """Break all connections and connect again; seconds until all listen."""
        self._tell({"do": "cut"})
        return float(self._hear()["reconnected_s"])

    def end(self) -> dict[str, Any]:
        """Stop, and return what the load saw."""
        self._tell({"do": "end"})
        seen: dict[str, Any] = self._hear()
        self._process.wait(20)
        return seen

    def kill(self) -> None:
        """End the process whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _tell(self, body: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(body) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the load process ended early")
        heard: dict[str, Any] = json.loads(line)
        return heard
