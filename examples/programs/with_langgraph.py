"""A graph of LangGraph in one session (pip install -r requirements/programs/langgraph.txt).

Reads a session as `POST /api/v1/runs/RUN/sessions` answers it from its input, and prints what the agent said in the
end. The name of a model is a seat. --responses: it asks for responses, not for chat completions; --stream: it reads its
replies as streams.
"""

import json
import sys
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def play(session: dict[str, Any], *options: str) -> str:
    more = {"use_responses_api": "--responses" in options, "streaming": "--stream" in options}
    model = ChatOpenAI(model="solver", base_url=session["base_url"], api_key=session["key"], **more).bind_tools([add])
    graph = StateGraph(MessagesState)
    graph.add_node("solver", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([add]))
    graph.add_edge(START, "solver")
    graph.add_conditional_edges("solver", tools_condition)
    graph.add_edge("tools", "solver")
    said = graph.compile().invoke({"messages": [("system", "You add."), ("user", "2+3?")]})
    return str(said["messages"][-1].text)


if __name__ == "__main__":
    print(play(json.load(sys.stdin), *sys.argv[1:]))
