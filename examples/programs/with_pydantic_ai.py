"""An agent of Pydantic AI in one session (pip install -r requirements/programs/pydantic-ai.txt).

Reads a session as `POST /api/v1/runs/RUN/sessions` answers it from its input, and prints what the agent said in the
end. The name of a model is a seat. --chat: it asks for chat completions, not for responses; --stream: it reads its
replies as streams.
"""

import asyncio
import json
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def play(session: dict[str, Any], *options: str) -> str:
    provider = OpenAIProvider(base_url=session["base_url"], api_key=session["key"])
    kind = OpenAIChatModel if "--chat" in options else OpenAIResponsesModel
    agent = Agent(kind("solver", provider=provider), instructions="You add.", tools=[add])
    if "--stream" in options:
        async with agent.run_stream("2+3?") as streamed:
            return str(await streamed.get_output())
    return str((await agent.run("2+3?")).output)


if __name__ == "__main__":
    print(asyncio.run(play(json.load(sys.stdin), *sys.argv[1:])))
