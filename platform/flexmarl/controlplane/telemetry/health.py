"""Health outside the API: alive, ready, and gauges for Prometheus."""

from collections.abc import Callable

import structlog
from django.conf import settings
from django.core.cache import cache
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from rest_framework.request import Request

from flexmarl.controlplane.common import measuring
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.telemetry import queries
from flexmarl.store import schema

log = structlog.get_logger(__name__)


def healthz(request: HttpRequest) -> JsonResponse:
    """Say that this process answers."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """Say whether this process can do its work, check by check. 503 when it cannot."""
    checks = {name: _passes(name, check) for name, check in _CHECKS.items()}
    ready = all(checks.values())
    body = {"status": "ok" if ready else "unready", "checks": {n: "ok" if ok else "failed" for n, ok in checks.items()}}
    return JsonResponse(body, status=200 if ready else 503)


def _passes(name: str, check: Callable[[], None]) -> bool:
    try:
        check()
    except Exception as error:  # each service's client has errors of its own; any of them means not ready
        log.warning("not_ready", check=name, error=str(error))
        return False
    return True


def _database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _migrations() -> None:
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        raise DatabaseError(f"{len(missing)} migrations are not applied")


def _store() -> None:
    schema.check(store_connection())


def _broker() -> None:
    if settings.BROKER_URL:
        cache.set("readyz", 1, timeout=10)


_CHECKS: dict[str, Callable[[], None]] = {
    "database": _database,
    "migrations": _migrations,
    "store": _store,
    "broker": _broker,
}


class MetricsView(ApiView):
    """Gauges in Prometheus' text format. Needs a token that may read the cluster."""

    scopes = {"GET": Scope.CLUSTER_READ}
    throttle_classes = ()
    schema = None

    def get(self, request: Request) -> HttpResponse:
        """Answer all gauges."""
        text = queries.prometheus_text() + measuring.PROCESS.text()
        return HttpResponse(text, content_type="text/plain; version=0.0.4; charset=utf-8")
