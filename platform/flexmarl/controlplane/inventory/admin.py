"""Support staff's view of the hardware. What the store keeps is shown, never edited here."""

from django.contrib import admin

from flexmarl.controlplane.common.admin import ReadOnlyAdmin
from flexmarl.controlplane.inventory.models import Device, Lease, Node, Pool


@admin.register(Pool)
class PoolAdmin(ReadOnlyAdmin):
    list_display = ("name", "description")


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = ("name", "address", "state", "heartbeat_at")


@admin.register(Device)
class DeviceAdmin(ReadOnlyAdmin):
    list_display = ("id", "node", "kind", "pool", "state")
    list_filter = ("pool", "state")


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    list_display = ("id", "device", "run_id", "use", "state", "granted_at", "ended_at")
    list_filter = ("state", "use")
    exclude = ("endpoint",)
