"""Support staff's view of simulations. They are changed through actions only."""

from django.contrib import admin

from flexmarl.controlplane.common.admin import ReadOnlyAdmin
from flexmarl.controlplane.simulations.models import Simulation


@admin.register(Simulation)
class SimulationAdmin(ReadOnlyAdmin):
    list_display = ("name", "kind", "state", "reason", "project", "owner", "created_at")
    list_filter = ("kind", "state")
    search_fields = ("name",)
    exclude = ("result", "timelines")
