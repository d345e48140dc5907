"""What this web process counts of itself for Prometheus: requests by route, open sockets and streams.

Labels are bounded: a route is the name of a view, never an address, a status is one of five classes, and projects are
few. Counting never fails a request.
"""

import prometheus_client
from django.http import HttpRequest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_KINDS = {"sockets": "Open websockets of pages", "streams": "Open event streams of scripts"}

prometheus_client.disable_created_metrics()  # one more series per counter, which nothing here is read by


class Measurements:
    """Counters of one process. Safe for several threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "flexmarl_http_request_seconds",
            "Time to answer a request, by route.",
            ("method", "route", "status"),
            buckets=BOUNDS_S,
            registry=self.registry,
        )
        self._open = {
            kind: Gauge(f"flexmarl_web_{kind}", f"{words}.", registry=self.registry) for kind, words in _KINDS.items()
        }

        self._served = Counter(
            "flexmarl_serving_requests",
            "Calls with serving keys, by project and whether they were let in.",
            ("project", "outcome"),
            registry=self.registry,
        )
        self._tokens = Counter(
            "flexmarl_serving_tokens",
            "Tokens charged to serving keys, by project and kind.",
            ("project", "kind"),
            registry=self.registry,
        )

    def served(self, project: str, outcome: str) -> None:
        """Count a call with a serving key that was `let_in` or `refused`."""
        self._served.labels(project, outcome).inc()

    def charged(self, project: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Count what a call with a serving key used."""
        self._tokens.labels(project, "prompt").inc(prompt_tokens)
        self._tokens.labels(project, "completion").inc(completion_tokens)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that has been answered."""
        self._requests.labels(method, route, f"{status // 100}xx").observe(seconds)

    def opened(self, kind: str, by: int = 1) -> None:
        """Count a connection that stays, or with -1 its end."""
        self._open[kind].inc(by)


def route_of(request: HttpRequest) -> str:
    """Name the route of a request: one of the views' names, or `other`."""
    match = getattr(request, "resolver_match", None)
    return (match.view_name or "other") if match is not None else "other"


PROCESS = Measurements()
"""The counters of this process."""


def count(request: HttpRequest, status: int, seconds: float) -> None:
    """Count an answered request in this process."""
    method = request.method if request.method in METHODS else "other"
    PROCESS.observe(str(method), route_of(request), status, seconds)
