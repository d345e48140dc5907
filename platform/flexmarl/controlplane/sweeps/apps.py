"""Sweeps: many runs of one specification with some of its values searched."""

from django.apps import AppConfig


class SweepsConfig(AppConfig):
    name = "flexmarl.controlplane.sweeps"
    label = "sweeps"
    verbose_name = "Sweeps"
