"""The whole system as its users get it: `manage.py up` in a home of its own, spoken to over REST.

For tests and benchmarks that must go through browser, broker, database and HTTP; nothing here reaches into a process.
"""

import io
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from workers.packages.inside.unpacking import extract

ROOT = Path(__file__).resolve().parents[2]
OF_THE_SESSION = {"DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE"}
MANY_DEVICES = 7
"""Of the installation for runs that need several devices, or meet others: as many as the largest such test takes."""
EXTERNAL_PORT = 20_000 + os.getpid() % 10_000
"""Of models that shared installations may ask; below the ports that the system gives away."""
HUB_PORT = EXTERNAL_PORT - 10_000
"""Of the hub that they may import from."""
EXTERNAL_SECRET, EXTERNAL_KEY = "OPEN", "sk-of-the-tests"
"""A secret that agents may name there, and its value."""
TERMINAL = {"completed", "stopped", "failed", "cancelled", "killed"}


class ApiError(RuntimeError):
    """A refusal of the API, with its problem document."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(f"{status} {problem.get('code', '')}: {problem.get('detail', '')} {problem.get('errors', '')}")
        self.status = status
        self.problem = problem


class Api:
    """A script's view: bearer token, JSON in and out."""

    def __init__(self, base: str, token: str) -> None:
        self.base = base.rstrip("/")
        self.token = token

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        url = path if path.startswith("http") else f"{self.base}/api/v1{path}"
        request = urllib.request.Request(url, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Accept", "application/json")
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        data = None
        if body is not None:
            packed = isinstance(body, bytes)
            request.add_header("Content-Type", "application/octet-stream" if packed else "application/json")
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data=data, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read()
            try:
                problem = json.loads(text)
            except ValueError:
                problem = {"detail": text[:300].decode(errors="replace")}
            raise ApiError(error.code, problem) from None
        return json.loads(text) if text else None

    def download(self, path: str, target: Path) -> Path:
        """Unpack an archive into a folder."""
        request = urllib.request.Request(f"{self.base}/api/v1{path}")
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=300) as answer:
            body = answer.read()
            assert len(body) == int(answer.headers["Content-Length"])
        with tarfile.open(fileobj=io.BytesIO(body)) as archive:
            for member in archive:
                extract(archive, member, target)
        return target

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, body: object = None) -> Any:
        return self.call("POST", path, body if body is not None else {}, Idempotency_Key=str(uuid.uuid4()))

    def consistency(self, run_id: str, timeout_s: float = 120.0) -> dict[str, Any]:
        """Have the run's rows checked, and return what was found."""
        check = self.post(f"/runs/{run_id}/consistency")
        deadline = time.monotonic() + timeout_s
        while check["state"] in {"queued", "running"}:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the check of {run_id} is {check}")
            time.sleep(0.2)
            check = self.get(f"/runs/{run_id}/consistency/{check['id']}")
        if check["state"] != "done":
            raise RuntimeError(f"the check of {run_id} ended: {check}")
        found: dict[str, Any] = self.get(f"/runs/{run_id}/consistency")
        return found

    def create_run(self, *, start: bool = True, **body: object) -> dict[str, Any]:
        return self.post("/runs", {"start": start, **body})

    def run(self, run_id: str) -> dict[str, Any]:
        return self.get(f"/runs/{run_id}")

    def act(self, run_id: str, verb: str) -> Any:
        return self.post(f"/runs/{run_id}/actions/{verb}")

    def wait(
        self, run_id: str, done: Callable[[dict[str, Any]], bool], timeout_s: float, every_s: float = 0.25
    ) -> dict[str, Any]:
        """Poll a run until `done(run)`. Raises TimeoutError with the run's state."""
        deadline = time.monotonic() + timeout_s
        while True:
            run = self.run(run_id)
            if done(run):
                return run
            if time.monotonic() > deadline:
                raise TimeoutError(f"{run['key']}: {run['status']} {run['reason_text']} at step {run['step']}")
            time.sleep(every_s)

    def devices_free(self) -> bool:
        """Whether a run of the reference game could start now."""
        return bool(self.post("/runs/plan", {"template": "reference_game"})["devices"]["fits_now"])

    def finish(self, run_id: str, timeout_s: float) -> dict[str, Any]:
        return self.wait(run_id, lambda run: run["status"] in TERMINAL, timeout_s, every_s=0.75)

    def series(
        self, run_id: str, *names: str, x: str = "step"
    ) -> dict[tuple[str, str, str], tuple[list[float], list[float]]]:
        data = self.get(f"/runs/{run_id}/series/data?names={','.join(names)}&x={x}&max_points=1500")
        return {(s["name"], s["agent"], s["stat"]): (s["x"], s["y"]) for s in data["series"]}


class System:
    """`manage.py up` as a child process. Use as a context manager."""

    def __init__(
        self,
        home: Path,
        *,
        port: int = 0,
        environment: dict[str, str] | None = None,
        options: tuple[str, ...] = (),
        python: str = sys.executable,
    ) -> None:
        self.home = home
        self.python = python
        self.options = ("--port", str(port), *options)
        self.password = secrets.token_urlsafe(12)
        # Its own embedded services and real settings, whatever the test session uses, unless the caller names others.
        inherited = {name: value for name, value in os.environ.items() if name not in OF_THE_SESSION}
        self.environment = {
            **inherited,
            "FLEXMARL_HOME": str(home),
            "FLEXMARL_ADMIN_PASSWORD": self.password,
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.url = self.token = ""
        self.seconds_to_url = 0.0

    def __enter__(self) -> "System":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        return self.home / "up.out"

    def start(self, timeout_s: float = 240.0) -> None:
        """Start and wait until the page answers."""
        self.process = self.spawn()
        self.until_ready(timeout_s)

    def until_ready(self, timeout_s: float = 240.0) -> None:
        """Wait until the page of the process that was started answers."""
        assert self.process is not None
        started = time.monotonic()
        state = self.home / "up.json"
        while time.monotonic() - started < timeout_s:
            if self.process.poll() is not None:
                raise RuntimeError(f"up ended with {self.process.returncode}:\n{self.tail()}")
            if state.exists():
                found = json.loads(state.read_text() or "{}")
                if found.get("pid") == self.process.pid and found.get("ready"):
                    self.url = found["url"]
                    self.seconds_to_url = time.monotonic() - started
                    return
            time.sleep(0.05)
        raise TimeoutError(f"up was not ready within {timeout_s} s:\n{self.tail()}")

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Begin to start, without waiting for anything."""
        self.home.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            return subprocess.Popen(
                [self.python, str(ROOT / "manage.py"), "up", *self.options],
                cwd=ROOT,
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def stop(self, timeout_s: float = 20.0) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    @property
    def pid(self) -> int:
        """Process of the supervisor."""
        assert self.process is not None
        return self.process.pid

    def processes(self) -> dict[str, int]:
        """Name -> pid of every process the supervisor runs now."""
        return {p["name"]: p["pid"] for p in json.loads((self.home / "up.json").read_text())["processes"]}

    @property
    def database_url(self) -> str:
        """Address of the installation's database, for tests that compare rows with what the API says."""
        published = json.loads((self.home / "run" / "environment.json").read_text())
        return str(published["DATABASE_URL"])

    def kill(self, name: str) -> int:
        """SIGKILL one process and return its pid once the supervisor runs another in its place."""
        pid = self.processes()[name]
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while self.processes().get(name, pid) == pid:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} was not started again")
            time.sleep(0.1)
        return pid

    def manage(self, *arguments: str) -> str:
        """Run another management command against the same home."""
        return subprocess.run(
            [self.python, str(ROOT / "manage.py"), *arguments],
            cwd=ROOT,
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def api(self) -> Api:
        """A client with a token of the first admin, which is made at the first call."""
        if not self.token:
            self.token = self._new_token()
        return Api(self.url, self.token)

    def _new_token(self) -> str:
        """Make a token as a person does, on the page: a management command would take seconds to load."""
        browser = self.signed_in()
        page = browser.open(f"{self.url}/settings/tokens").read().decode()
        csrf = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)[0]
        asked = urllib.request.Request(
            f"{self.url}/api/v1/tokens",
            data=json.dumps({"name": f"script-{uuid.uuid4().hex[:6]}"}).encode(),
            headers={"Content-Type": "application/json", "X-CSRFToken": csrf},
        )
        return str(json.loads(browser.open(asked).read())["token"])

    def signed_in(self) -> urllib.request.OpenerDirector:
        """Return a browser that has signed in as the first admin."""
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        page = browser.open(f"{self.url}/sign-in").read().decode()
        token = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)[0]
        form = f"csrfmiddlewaretoken={token}&username=admin&password={self.password}&next=/"
        browser.open(f"{self.url}/sign-in", data=form.encode())
        return browser
