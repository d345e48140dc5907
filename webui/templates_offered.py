"""Templates as a page offers them: in groups, beside what else a run can be made of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from webui import reading

GROUPS = {
    "own": ("What you have", "Your data, environments, teams and programs come in unchanged."),
    "chat": ("Teams of chat models", "One small real model, an adapter for each agent, questions checked by rule."),
    "game": ("Small games", "Models of a few million weights, trained from nothing: a whole run in minutes on a CPU."),
}
"""Group -> its title, and a sentence."""


@dataclass(frozen=True, slots=True)
class Start:
    """A way to a run that begins on another page than New run."""

    icon: str
    title: str
    text: str
    verb: str
    page: str
    """Name of its address."""


STARTS = (
    Start(
        "stack-2",
        "A model",
        "Files from your computer, a folder of the nodes or a repository of a hub, checked before any run can use it.",
        "Import model",
        "webui:import_model",
    ),
    Start(
        "database",
        "A dataset",
        "JSON Lines, CSV or Parquet of questions with answers, or of whole conversations to begin with.",
        "Import dataset",
        "webui:import_dataset",
    ),
    Start(
        "box",
        "An environment or tools",
        "A Python package with environments, rewards, agent programs or MCP servers, built apart from the platform.",
        "Add package",
        "webui:build_package",
    ),
    Start(
        "users-group",
        "A team in words",
        "Who speaks, in which order, who sees what, and what each is told.",
        "Describe team",
        "webui:new_team",
    ),
)


def grouped(rows: Iterable[Mapping[str, Any]], query: str = "") -> list[dict[str, Any]]:
    """Return the groups that have templates, and of the templates those that hold every word of a query."""
    words = query.casefold().split()
    found = [row for row in rows if all(word in _text(row) for word in words)]
    groups = [
        {"name": name, "title": title, "text": text, "rows": [line(row) for row in found if row["group"] == name]}
        for name, (title, text) in GROUPS.items()
    ]
    return [group for group in groups if group["rows"]]


def line(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a template with the marks of its roles and its number of steps."""
    return {**row, "marks": reading.role_marks(row["roles"]), "steps": row["spec"]["budget"]["train_steps"]}


def _text(row: Mapping[str, Any]) -> str:
    named = ("title", "description", "environment", "environment_title", "preset")
    said = [*(row[name] for name in named), *row["roles"]]
    return " ".join(said).casefold()
