"""Support staff's view of datasets. They are changed through actions only."""

from django.contrib import admin

from flexmarl.controlplane.common.admin import ReadOnlyAdmin
from flexmarl.controlplane.datasets.models import Dataset


@admin.register(Dataset)
class DatasetAdmin(ReadOnlyAdmin):
    list_display = ("name", "project", "created_at", "archived_at")
    list_filter = ("project",)
    search_fields = ("name",)
