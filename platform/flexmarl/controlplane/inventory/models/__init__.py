"""Pools, which people keep, and nodes, devices and leases, which the store keeps and Django only reads."""

from flexmarl.controlplane.inventory.models.pool import INSTALLATION_POOL, Pool, ProjectPool
from flexmarl.controlplane.inventory.models.registry import Device, Interval, Lease, Node

__all__ = ["INSTALLATION_POOL", "Device", "Interval", "Lease", "Node", "Pool", "ProjectPool"]
