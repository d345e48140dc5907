"""Roles of a project: what an agent is called, its hue and monogram."""

from django.apps import AppConfig


class AgentsConfig(AppConfig):
    name = "flexmarl.controlplane.agents"
    label = "agents"
    verbose_name = "Agents"
