"""Agent definitions to look at: one with three versions, beside the roles that the seeded runs use."""

from typing import Any
from uuid import UUID

AGENT = UUID("01900000-0000-7000-8000-00000000000a")


def agents(owner: Any) -> None:
    """Define an agent in three versions."""
    from flexmarl.controlplane.accounts.queries import actor_of_user
    from flexmarl.controlplane.agents.actions import save_agent
    from flexmarl.controlplane.agents.models import AgentDefinition

    AgentDefinition.objects.create(id=AGENT, project_id="default", role="careful_solver", hue=3)
    first = {"instructions": "You are the {{ role }} of a team of {{ team | length }}.\nAnswer with one number."}
    second = {**first, "sampling": {"temperature": 0.7, "max_tokens": 64, "stop": ["Done."]}}
    third = {**second, "instructions": first["instructions"].replace("Answer", "Think first. Then answer")}
    for settings, note in ((first, "as in the paper"), (second, "cooler"), (third, "")):
        save_agent(
            actor_of_user(owner),
            name="careful_solver",
            settings=settings,
            note=note,
            description="Thinks before it answers; the reviser reads what it wrote.",
        )
