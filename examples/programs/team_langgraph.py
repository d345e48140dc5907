"""A team of LangGraph that trains: a solver answers a sum, a reviser reads the answer and answers again.

Needs `pip install -r requirements/programs/langgraph.txt`. FLEXMARL_URL: the platform; FLEXMARL_TOKEN: a token with
`runs:act`; FLEXMARL_RUN: key of a run with `environment: {type: program, seats: [solver, reviser], tasks: 35,
held_out: 20}`.
"""

import asyncio
import os
import random
import re
from typing import Any, TypedDict

import httpx
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from openai import OpenAIError

SESSIONS = f"{os.environ['FLEXMARL_URL']}/api/v1/runs/{os.environ['FLEXMARL_RUN']}/sessions"

PAIRS = [(left, right) for left in range(10) for right in range(left, 10)]
"""What is asked, one sum per task: each pair once, so that no held-out sum is trained the other way round."""
random.Random(0).shuffle(PAIRS)


class State(TypedDict, total=False):
    question: str
    solver: str
    reviser: str


def team(base_url: str, key: str) -> Any:
    """The program as it was, but for the address and key of its models: the name of a model is a seat."""
    solver, reviser = (
        ChatOpenAI(model=seat, base_url=base_url, api_key=key, max_retries=0, timeout=600)
        for seat in ("solver", "reviser")
    )

    async def solve(state: State) -> State:
        said = await solver.ainvoke([("user", state["question"])])
        return {"solver": str(said.text)}

    async def revise(state: State) -> State:
        said = await reviser.ainvoke([("user", f"{state['question']} A colleague answered: {state['solver']}")])
        return {"reviser": str(said.text)}

    graph = StateGraph(State)
    graph.add_node("solve", solve)
    graph.add_node("revise", revise)
    graph.add_edge(START, "solve")
    graph.add_edge("solve", "revise")
    graph.add_edge("revise", END)
    return graph.compile()


def right(said: str, answer: int) -> float:
    """Return 1 for a text whose last number is the answer."""
    numbers = re.findall(r"\d+", said)
    return float(bool(numbers) and int(numbers[-1]) == answer)


async def play(platform: httpx.AsyncClient, session: dict[str, Any]) -> None:
    """Play a session and report what each seat earned."""
    left, other = PAIRS[session["task"]]
    question = f"What is {left}+{other}? Answer with only the number."
    try:
        said = await team(session["base_url"], session["key"]).ainvoke({"question": question})
    except OpenAIError:
        return  # its worker is gone, or the run does not need it any more: the episode is played again
    own = {seat: right(said[seat], left + other) for seat in ("solver", "reviser")}
    await platform.post(f"{SESSIONS}/{session['id']}/finish", json={"reward": own["reviser"], "rewards": own})


async def main() -> None:
    """Play whatever sessions the run opens, at the same time, until it has ended."""
    headers = {"Authorization": f"Bearer {os.environ['FLEXMARL_TOKEN']}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as platform, asyncio.TaskGroup() as playing:
        while True:
            taken = await platform.post(SESSIONS)
            if taken.is_success:
                playing.create_task(play(platform, taken.json()))
            elif taken.json()["code"] in {"no_open_session", "rate_limited"}:
                await asyncio.sleep(float(taken.headers.get("Retry-After", 1)))
            else:
                break


if __name__ == "__main__":
    asyncio.run(main())
