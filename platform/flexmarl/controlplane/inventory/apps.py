"""Pools, nodes, devices and leases."""

from django.apps import AppConfig


class InventoryConfig(AppConfig):
    name = "flexmarl.controlplane.inventory"
    label = "inventory"
    verbose_name = "Inventory"
