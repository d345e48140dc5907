"""Packages of environments: named or uploaded, built by nodes, described by their manifests."""

from django.apps import AppConfig


class PackagesConfig(AppConfig):
    name = "flexmarl.controlplane.packages"
    label = "packages"
    verbose_name = "Packages"
