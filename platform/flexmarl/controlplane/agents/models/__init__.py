"""Agents of a project."""

from flexmarl.controlplane.agents.models.definition import AgentDefinition

__all__ = ["AgentDefinition"]
