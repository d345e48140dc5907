"""Runs: their life cycle as people and scripts ask for it."""

from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "flexmarl.controlplane.runs"
    label = "runs"
    verbose_name = "Runs"
