"""Agents of AutoGen in one session (pip install -r requirements/programs/autogen.txt).

Reads a session as `POST /api/v1/runs/RUN/sessions` answers it from its input, and prints what the agents said in the
end. The name of a model is a seat. --team: a reviser speaks after the solver; --stream: they read their replies as
streams.
"""

import asyncio
import json
import sys
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

ABLE = ModelInfo(family="unknown", function_calling=True, vision=False, json_output=False, structured_output=False)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent(session: dict[str, Any], seat: str, says: str, **more: Any) -> AssistantAgent:
    llm = OpenAIChatCompletionClient(model=seat, base_url=session["base_url"], api_key=session["key"], model_info=ABLE)
    return AssistantAgent(seat, llm, system_message=says, max_tool_iterations=4, **more)


async def play(session: dict[str, Any], *options: str) -> str:
    streams = "--stream" in options
    agents = [agent(session, "solver", "You add.", tools=[add], model_client_stream=streams)]
    if "--team" in options:
        agents.append(agent(session, "reviser", "You say the sum that is right.", model_client_stream=streams))
    team = RoundRobinGroupChat(agents, max_turns=len(agents))
    return str((await team.run(task="2+3?")).messages[-1].to_text())


if __name__ == "__main__":
    print(asyncio.run(play(json.load(sys.stdin), *sys.argv[1:])))
