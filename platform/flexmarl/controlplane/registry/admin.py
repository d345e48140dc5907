"""Support staff's view of models. They are changed through actions only."""

from django.contrib import admin

from flexmarl.controlplane.common.admin import ReadOnlyAdmin
from flexmarl.controlplane.registry.models import LanguageModel


@admin.register(LanguageModel)
class LanguageModelAdmin(ReadOnlyAdmin):
    list_display = ("name", "revision", "project", "state", "reason", "owner", "created_at")
    list_filter = ("state",)
    search_fields = ("name",)
