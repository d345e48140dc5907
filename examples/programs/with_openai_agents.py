"""An agent of the OpenAI Agents SDK in one session (pip install -r requirements/programs/openai-agents.txt).

Reads a session as `POST /api/v1/runs/RUN/sessions` answers it from its input, and prints what the agent said in the
end. The name of a model is a seat. --chat: it asks for chat completions, not for responses; --stream: it reads its
replies as streams.
"""

import asyncio
import json
import sys
from typing import Any

from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def play(session: dict[str, Any], *options: str) -> str:
    responses = "--chat" not in options
    provider = OpenAIProvider(base_url=session["base_url"], api_key=session["key"], use_responses=responses)
    config = RunConfig(model_provider=provider, tracing_disabled=True)
    agent = Agent(name="Solver", model="solver", instructions="You add.", tools=[add])
    if "--stream" in options:
        streamed = Runner.run_streamed(agent, "2+3?", run_config=config)
        async for _ in streamed.stream_events():
            pass
        return str(streamed.final_output)
    return str((await Runner.run(agent, "2+3?", run_config=config)).final_output)


if __name__ == "__main__":
    print(asyncio.run(play(json.load(sys.stdin), *sys.argv[1:])))
