"""Tables of packages."""

from flexmarl.controlplane.packages.models.package import Package

__all__ = ["Package"]
