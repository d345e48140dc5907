"""Models that runs may name: imported once, checked, and kept by digest."""

from django.apps import AppConfig


class RegistryConfig(AppConfig):
    name = "flexmarl.controlplane.registry"
    label = "registry"
    verbose_name = "Models"
