"""What this web process counts of itself, in Prometheus' text format: requests by route, open sockets and streams.

Labels are bounded: a route is the pattern of a view, never an address, and a status is one of five classes. Counting
never fails a request: it is arithmetic on numbers of this process, under one lock.
"""

import threading
from bisect import bisect_left
from collections import Counter

from django.http import HttpRequest

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)
_KINDS = {"sockets": "Open websockets of pages", "streams": "Open event streams of scripts"}


class Measurements:
    """Counters of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str, str], list[float]] = {}
        self._open: Counter[str] = Counter()

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that has been answered."""
        key = (method, route, f"{status // 100}xx")
        with self._lock:
            row = self._requests.setdefault(key, [0.0] * (len(BOUNDS_S) + 2))
            row[bisect_left(BOUNDS_S, seconds)] += 1
            row[-1] += seconds

    def opened(self, kind: str, by: int = 1) -> None:
        """Count a connection that stays, or with -1 its end."""
        with self._lock:
            self._open[kind] += by

    def open_now(self, kind: str) -> int:
        """Return how many connections of a kind are open."""
        return self._open[kind]

    def text(self) -> str:
        """Write everything for Prometheus."""
        with self._lock:
            requests = sorted((key, list(row)) for key, row in self._requests.items())
            connections = dict(self._open)
        lines = [f"# HELP {_HTTP} Time to answer a request, by route.", f"# TYPE {_HTTP} histogram"]
        for (method, route, status), row in requests:
            lines += _histogram(f'method="{method}",route="{route}",status="{status}"', row)
        for kind, words in _KINDS.items():
            name = f"flexmarl_web_{kind}"
            lines += [f"# HELP {name} {words}.", f"# TYPE {name} gauge", f"{name} {connections.get(kind, 0)}"]
        return "\n".join(lines) + "\n"


_HTTP = "flexmarl_http_request_seconds"


def _histogram(labels: str, row: list[float]) -> list[str]:
    lines, total = [], 0.0
    for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], row[:-1], strict=True):
        total += count
        lines.append(f'{_HTTP}_bucket{{{labels},le="{bound}"}} {total:.0f}')
    return [*lines, f"{_HTTP}_sum{{{labels}}} {row[-1]:.6f}", f"{_HTTP}_count{{{labels}}} {total:.0f}"]


def route_of(request: HttpRequest) -> str:
    """Name the route of a request: one of the views' names, or `other`."""
    match = getattr(request, "resolver_match", None)
    return (match.view_name or "other") if match is not None else "other"


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
PROCESS = Measurements()
"""The counters of this process."""


def count(request: HttpRequest, status: int, seconds: float) -> None:
    """Count an answered request in this process."""
    method = request.method if request.method in METHODS else "other"
    PROCESS.observe(str(method), route_of(request), status, seconds)
