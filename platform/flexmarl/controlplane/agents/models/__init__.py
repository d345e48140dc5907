"""Agents of a project."""

from flexmarl.controlplane.agents.models.definition import AgentDefinition, AgentVersion

__all__ = ["AgentDefinition", "AgentVersion"]
