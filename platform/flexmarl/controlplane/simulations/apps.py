"""Simulations that people ask for: presets compared on a workload, and what other settings would do for a run."""

from django.apps import AppConfig


class SimulationsConfig(AppConfig):
    name = "flexmarl.controlplane.simulations"
    label = "simulations"
    verbose_name = "Simulations"
