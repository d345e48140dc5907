"""A crew of CrewAI in one session (pip install -r requirements/programs/crewai.txt).

Reads a session as `POST /api/v1/runs/RUN/sessions` answers it from its input, and prints what the crew said in the
end. The name of a model is a seat. --team: a reviser works behind the solver; --responses: they ask for responses, not
for chat completions; --stream: they read their replies as streams.
"""

import json
import os
import sys
from typing import Any

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"  # is read when it is imported

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def task(session: dict[str, Any], seat: str, asked: str, tools: list[Any], **more: Any) -> Task:
    llm = LLM(seat, provider="openai", base_url=session["base_url"], api_key=session["key"], **more)
    agent = Agent(role=seat, goal="You add.", backstory="You add with care.", llm=llm, tools=tools)
    return Task(description=asked, expected_output="Only the number.", agent=agent)


def play(session: dict[str, Any], *options: str) -> str:
    more = {"api": "responses" if "--responses" in options else "completions", "stream": "--stream" in options}
    tasks = [task(session, "solver", "2+3?", [add], **more)]
    if "--team" in options:
        tasks.append(task(session, "reviser", "2+3? A colleague has answered.", [], **more))
    return str(Crew(agents=[one.agent for one in tasks], tasks=tasks).kickoff())


if __name__ == "__main__":
    print(play(json.load(sys.stdin), *sys.argv[1:]))
