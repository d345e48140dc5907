"""Routes outside the API: health and gauges."""

from django.urls import path

from flexmarl.controlplane.telemetry.health import endpoints

urlpatterns = [
    path("healthz", endpoints.healthz, name="healthz"),
    path("readyz", endpoints.readyz, name="readyz"),
    path("metrics", endpoints.MetricsView.as_view(), name="metrics"),
]
