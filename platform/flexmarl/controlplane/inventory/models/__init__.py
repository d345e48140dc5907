"""Pools and node tokens, which people keep, and nodes, devices and leases, which the store keeps and Django reads."""

from flexmarl.controlplane.inventory.models.node_token import NodeToken
from flexmarl.controlplane.inventory.models.pool import INSTALLATION_POOL, Pool, ProjectPool
from flexmarl.controlplane.inventory.models.registry import Device, Interval, Lease, Node

__all__ = ["INSTALLATION_POOL", "Device", "Interval", "Lease", "Node", "NodeToken", "Pool", "ProjectPool"]
