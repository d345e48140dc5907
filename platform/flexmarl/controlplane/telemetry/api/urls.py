"""Routes of telemetry and devices."""

from django.urls import path, re_path

from flexmarl.controlplane.telemetry.api import checks, comparison, notes, views
from flexmarl.controlplane.telemetry.api.pace_urls import urlpatterns as pace_routes
from flexmarl.controlplane.telemetry.api.series_urls import urlpatterns as series_routes
from flexmarl.controlplane.telemetry.api.trajectory_urls import trajectory_routes

_RUN = "runs/<str:run_id>"

urlpatterns = [
    *pace_routes,
    *series_routes,
    *trajectory_routes,
    path("run-comparison", comparison.RunComparisonView.as_view(), name="api-run-comparison"),
    path(f"{_RUN}/events", views.EventsView.as_view(), name="api-run-events"),
    path(f"{_RUN}/notes", notes.NotesView.as_view(), name="api-run-notes"),
    path(f"{_RUN}/consistency", checks.ConsistencyView.as_view(), name="api-run-consistency"),
    path(f"{_RUN}/consistency/<uuid:check_id>", checks.CheckView.as_view(), name="api-run-check"),
    path(
        f"{_RUN}/consistency/<uuid:check_id>/actions/cancel",
        checks.CancelCheckView.as_view(),
        name="api-run-check-cancel",
    ),
    path("devices", views.DevicesView.as_view(), name="api-devices"),
    path("devices/<str:device_id>", views.DeviceView.as_view(), name="api-device"),
    re_path(
        r"^devices/(?P<device_id>[^/]+)/actions/(?P<action>cordon|enable)$",
        views.DeviceActionView.as_view(),
        name="api-device-action",
    ),
]
