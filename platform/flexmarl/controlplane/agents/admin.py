"""Support staff's view of agents."""

from django.contrib import admin

from flexmarl.controlplane.agents.models import AgentDefinition
from flexmarl.controlplane.common.admin import AnyModelAdmin


@admin.register(AgentDefinition)
class AgentAdmin(AnyModelAdmin):
    list_display = ("role", "project", "hue", "created_at")
    list_filter = ("project",)
    readonly_fields = ("project", "role")
