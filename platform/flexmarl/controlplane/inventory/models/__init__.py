"""Pools, node tokens and requests to join, which people keep; nodes, devices and leases, which the store keeps."""

from flexmarl.controlplane.inventory.models.node_join import NodeJoin
from flexmarl.controlplane.inventory.models.node_token import NodeToken
from flexmarl.controlplane.inventory.models.pool import INSTALLATION_POOL, Pool, ProjectPool
from flexmarl.controlplane.inventory.models.registry import Device, Interval, Lease, Node

__all__ = ["INSTALLATION_POOL", "Device", "Interval", "Lease", "Node", "NodeJoin", "NodeToken", "Pool", "ProjectPool"]
