"""Routes outside the API: health and gauges."""

from django.urls import path

from flexmarl.controlplane.telemetry import health

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.MetricsView.as_view(), name="metrics"),
]
