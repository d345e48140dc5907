"""Experiments, templates, presets and plans."""

from django.apps import AppConfig


class ExperimentsConfig(AppConfig):
    name = "flexmarl.controlplane.experiments"
    label = "experiments"
    verbose_name = "Experiments"
