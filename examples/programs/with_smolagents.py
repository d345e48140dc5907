"""An agent of smolagents that writes code, in one session (pip install -r requirements/programs/smolagents.txt).

Reads a session as `POST /api/v1/runs/RUN/sessions` answers it from its input, and prints what the agent said in the
end. The name of a model is a seat. --tools: it calls tools and does not write code; --stream: it reads its replies as
streams.
"""

import json
import sys
from typing import Any

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool
from smolagents.models import REMOVE_PARAMETER


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first one.
        b: The second one.
    """
    return a + b


def play(session: dict[str, Any], *options: str) -> str:
    tools = "--tools" in options
    more = {"stop": REMOVE_PARAMETER, "tool_choice": "auto"} if tools else {"stop": REMOVE_PARAMETER}
    model = OpenAIModel("solver", api_base=session["base_url"], api_key=session["key"], **more)
    kind = ToolCallingAgent if tools else CodeAgent
    agent = kind(tools=[add], model=model, stream_outputs="--stream" in options, verbosity_level=0)
    return str(agent.run("2+3?"))


if __name__ == "__main__":
    print(play(json.load(sys.stdin), *sys.argv[1:]))
