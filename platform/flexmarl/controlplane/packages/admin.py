"""Support staff's view of packages. They are changed through actions only."""

from django.contrib import admin

from flexmarl.controlplane.common.admin import ReadOnlyAdmin
from flexmarl.controlplane.packages.models import Package


@admin.register(Package)
class PackageAdmin(ReadOnlyAdmin):
    list_display = ("name", "release", "project", "state", "reason", "owner", "created_at")
    list_filter = ("state",)
    search_fields = ("name",)
