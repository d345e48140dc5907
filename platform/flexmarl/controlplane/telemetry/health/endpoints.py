"""Health outside the API: alive, ready, and gauges for Prometheus.

Under ASGI the first two are answered by `probes` before a request reaches Django.
"""

from django.http import HttpRequest, HttpResponse, JsonResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from rest_framework.request import Request

from flexmarl.controlplane.common import measuring
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.telemetry.hardware.cluster import InstallationGauges
from flexmarl.controlplane.telemetry.health import readiness


def healthz(request: HttpRequest) -> JsonResponse:
    """Say that this process answers."""
    return JsonResponse(readiness.ALIVE)


def readyz(request: HttpRequest) -> JsonResponse:
    """Say whether this process can do its work, check by check. 503 when it cannot."""
    report = readiness.look()
    return JsonResponse(report.body, status=report.status)


class MetricsView(ApiView):
    """Gauges in Prometheus' text format. Needs a token that may read the cluster."""

    scopes = {"GET": Scope.CLUSTER_READ}
    throttle_classes = ()
    schema = None

    def get(self, request: Request) -> HttpResponse:
        """Answer those of the installation and those of this process."""
        text = generate_latest(_INSTALLATION) + generate_latest(measuring.PROCESS.registry)
        return HttpResponse(text, content_type=CONTENT_TYPE_PLAIN_0_0_4)


_INSTALLATION = CollectorRegistry()
_INSTALLATION.register(InstallationGauges())
