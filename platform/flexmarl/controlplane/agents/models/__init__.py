"""Agents and teams of a project."""

from flexmarl.controlplane.agents.models.definition import AgentDefinition, AgentVersion
from flexmarl.controlplane.agents.models.saved_version import SavedVersion
from flexmarl.controlplane.agents.models.team import TeamDefinition, TeamVersion

__all__ = ["AgentDefinition", "AgentVersion", "SavedVersion", "TeamDefinition", "TeamVersion"]
