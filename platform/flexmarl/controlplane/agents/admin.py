"""Support staff's view of agents and teams."""

from django.contrib import admin

from flexmarl.controlplane.agents.models import AgentDefinition, TeamDefinition
from flexmarl.controlplane.common.admin import AnyModelAdmin


@admin.register(AgentDefinition)
class AgentAdmin(AnyModelAdmin):
    list_display = ("role", "project", "hue", "created_at")
    list_filter = ("project",)
    readonly_fields = ("project", "role")


@admin.register(TeamDefinition)
class TeamAdmin(AnyModelAdmin):
    list_display = ("name", "project", "created_at")
    list_filter = ("project",)
    readonly_fields = ("project", "name")
