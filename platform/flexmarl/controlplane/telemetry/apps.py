"""What a run shows: series, timeline, events, trajectories, and the live socket."""

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "flexmarl.controlplane.telemetry"
    label = "telemetry"
    verbose_name = "Telemetry"
