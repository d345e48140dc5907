"""Load on the web process of a real `up` beside a training run, and what the supervisor and the probes made of it."""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.support.chaos import patient
from tests.support.system import ROOT, System

sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
from web_site import LoadProcess, make_token, sign_in

PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 20.0
PATIENCE_S = 120.0
UNLIMITED = {"FLEXMARL_API_REQUESTS_PER_MINUTE": "10000000"}
"""Environment of the system: one token sends the whole load."""


@dataclass
class Seen:
    """What a stretch of load came to."""

    statuses: Counter[int] = field(default_factory=Counter)
    """Status -> answers; 0 for a connection that broke."""
    seconds: list[float] = field(default_factory=list)
    probes: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """Path -> (seconds, status) of each probe."""
    replaced: list[str] = field(default_factory=list)
    """Processes that ended or were replaced meanwhile."""
    steps: int = 0
    """Steps that the run trained meanwhile."""
    recovered_s: float = 0.0
    """From the end of the load to the answer of the next request."""

    @property
    def failed(self) -> int:
        """Answers that are the server's fault, and connections that broke."""
        return sum(count for status, count in self.statuses.items() if status >= 500 or status == 0)

    @property
    def refused(self) -> int:
        """Answers that say that the caller asks for too much."""
        return self.statuses[429]


class Prober(threading.Thread):
    """Asks one probe over and over, as a balancer does."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._over = threading.Event()
        self.seen: list[tuple[float, int]] = []

    def run(self) -> None:
        while not self._over.wait(PROBE_EVERY_S):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(self._url, timeout=PROBE_TIMEOUT_S) as answer:
                    status = answer.status
            except urllib.error.HTTPError as error:
                status = error.code
            except OSError:
                status = 0
            self.seen.append((time.monotonic() - began, status))

    def stop(self) -> list[tuple[float, int]]:
        self._over.set()
        self.join(PROBE_TIMEOUT_S + 1)
        return self.seen


def strain(
    system: System, run: dict[str, Any], *, sockets: int, per_s: int, seconds: float, distinct: bool = False
) -> Seen:
    """Put a system under load and watch. Reads come in four kinds; `distinct` makes each unlike all others."""
    cookie = sign_in(system.url, "admin", system.password)
    token = make_token(system.url, cookie)
    paths = [f"/api/v1/runs/{run['id']}", "/api/v1/runs", "/api/v1/devices", f"/api/v1/runs/{run['id']}/series"]
    before, step = system.processes(), system.api().run(run["id"])["step"]
    probers = {path: Prober(system.url + path) for path in ("/healthz", "/readyz")}
    topics = [f"run:{run['id']}"]
    load = LoadProcess(system.url, cookie, token, topics, paths, sockets=sockets, rate=per_s, distinct=distinct)
    try:
        for prober in probers.values():
            prober.start()
        time.sleep(seconds)
        seen = Seen(probes={path: prober.stop() for path, prober in probers.items()})
        answers = load.end()["answers"]
    finally:
        load.kill()
    seen.statuses = Counter(status for _, status in answers)
    seen.seconds = [took for took, _ in answers]
    ended = time.monotonic()
    after_step = patient(lambda: int(system.api().run(run["id"])["step"]), PATIENCE_S)
    seen.recovered_s = time.monotonic() - ended
    after = system.processes()
    seen.replaced = sorted(name for name, pid in before.items() if after.get(name) != pid)
    seen.steps = after_step - step
    return seen


def hung(system: System) -> list[str]:
    """Return what the supervisor took for hung."""
    lines = (system.home / "logs" / "supervisor.log").read_text().splitlines()
    return [line["process"] for line in map(json.loads, lines) if line["event"] == "hung"]


def load_average() -> float:
    """Return how many processes wanted a core during the last minute."""
    return os.getloadavg()[0]
