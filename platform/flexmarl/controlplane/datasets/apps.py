"""Datasets that people bring: files, versions of their rows, and what runs name."""

from django.apps import AppConfig


class DatasetsConfig(AppConfig):
    name = "flexmarl.controlplane.datasets"
    label = "datasets"
    verbose_name = "Datasets"
