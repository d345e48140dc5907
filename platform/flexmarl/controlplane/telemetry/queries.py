"""What others read of telemetry; pages import from here alone."""

from flexmarl.controlplane.telemetry.advice import advisories, verdict, verdicts
from flexmarl.controlplane.telemetry.bubble import bubble
from flexmarl.controlplane.telemetry.cluster import devices, gauges, prometheus_text
from flexmarl.controlplane.telemetry.feed import consistency, events, notes
from flexmarl.controlplane.telemetry.pipeline import pipeline_of as pipeline
from flexmarl.controlplane.telemetry.series import catalogue, data, describe
from flexmarl.controlplane.telemetry.timeline import timeline, utilisation
from flexmarl.controlplane.telemetry.trajectories import detail as trajectory
from flexmarl.controlplane.telemetry.trajectories import page as trajectory_page
from flexmarl.store.trajectories import EpisodeFilter

__all__ = [
    "EpisodeFilter",
    "advisories",
    "bubble",
    "catalogue",
    "consistency",
    "data",
    "describe",
    "devices",
    "events",
    "gauges",
    "notes",
    "pipeline",
    "prometheus_text",
    "timeline",
    "trajectory",
    "trajectory_page",
    "utilisation",
    "verdict",
    "verdicts",
]
