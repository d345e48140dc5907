"""Support staff's view of runs. Runs are changed through actions only."""

from django.contrib import admin

from flexmarl.controlplane.common.admin import ReadOnlyAdmin
from flexmarl.controlplane.runs.models import Operation, Run


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = ("key", "name", "status", "owner", "preset", "environment", "created_at")
    list_filter = ("preset", "environment")
    search_fields = ("key", "name")
    list_select_related = ("state", "owner")

    @admin.display(description="status")
    def status(self, run: Run) -> str:
        """Read the live status."""
        return run.state.status


@admin.register(Operation)
class OperationAdmin(ReadOnlyAdmin):
    list_display = ("verb", "run", "actor", "created_at")
    list_filter = ("verb",)
