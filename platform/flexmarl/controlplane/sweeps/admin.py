"""Support staff's view of sweeps."""

from django.contrib import admin

from flexmarl.controlplane.common.admin import AnyModelAdmin
from flexmarl.controlplane.sweeps.models import Sweep


@admin.register(Sweep)
class SweepAdmin(AnyModelAdmin):
    list_display = ("name", "project", "state", "owner", "created_at")
    search_fields = ("name",)
    readonly_fields = ("owner",)
