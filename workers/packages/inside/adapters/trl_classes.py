"""A class as TRL's `environment_factory` takes it: `reset(**columns)` returns text or nothing, and every other public
method with a docstring is a tool. Its score is what `reward`, `score` or `get_reward` says, else its attribute
`reward`.

One seat, `player`. The episode ends when the player calls no tool.
"""

import inspect
from typing import Any

from ..finding import named_by, public_methods
from ..jobs import Job
from ..schemas import of_callable, summary_of
from ..shapes import ForeignEnvironment, ForeignEpisode, Offer, SeatAsk, SeatReply, SeatResult

ROLE = "player"
REWARDS = ("get_reward", "reward", "score")
NO_TOOLS = ("reset", "close", *REWARDS)


def offers(job: Job) -> tuple[list[Offer], list[tuple[str, str]]]:
    """Offer the class that was named, where it is of this form."""
    if not job.entry:
        return [], []
    kind = named_by(job.entry)
    if not isinstance(kind, type) or not hasattr(kind, "reset") or hasattr(kind, "step"):
        return [], []
    if not tools_of(kind):
        return [], [(kind.__name__, "it has no public method with a docstring, which would be a tool")]
    options = of_callable(kind.reset)
    found = Offer(kind.__name__, "trl", job.entry, kind.__name__, summary_of(kind), options, (ROLE,), (ROLE,))
    return [found], []


def tools_of(kind: type) -> tuple[dict[str, Any], ...]:
    """Return the tools of a class as JSON schemas of functions."""
    names = [name for name in public_methods(kind) if name not in NO_TOOLS]
    return tuple(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": inspect.getdoc(getattr(kind, name)) or "",
                "parameters": of_callable(getattr(kind, name)),
            },
        }
        for name in names
    )


def environment(job: Job) -> ForeignEnvironment:
    """Return a class with the columns that it is reset with."""
    return ToolClass(job)


class ToolClass:
    def __init__(self, job: Job) -> None:
        self._kind = named_by(job.entry)
        self._job = job
        self._tools = tools_of(self._kind)

    def begin(self, task_seed: int, held_out: bool, seed: int) -> ForeignEpisode:
        return ToolEpisode(self._kind(), self._job, self._tools)


class ToolEpisode:
    """An episode of one player with tools."""

    def __init__(self, instance: Any, job: Job, tools: tuple[dict[str, Any], ...]) -> None:
        self._instance = instance
        self._job = job
        self._tools = tools
        self._names = {tool["function"]["name"] for tool in tools}
        self._text = str(instance.reset(**job.options) or "")
        self._first = self._text
        self._results: tuple[tuple[str, str], ...] = ()
        self._over = False
        self._refused = 0

    def asks(self) -> list[SeatAsk]:
        if self._over:
            return []
        return [SeatAsk(ROLE, self._text, tools=self._tools, results=self._results)]

    def act(self, replies: list[SeatReply]) -> None:
        self._text = ""
        self._results = tuple((str(call.get("id", "")), self._called(call)) for call in replies[0].calls)
        self._over = not replies[0].calls

    def _called(self, call: dict[str, Any]) -> str:
        """Return the result of a tool; what it refuses is told to the player, as TRL does."""
        if call["name"] not in self._names:
            self._refused += 1
            return f"There is no tool {call['name']}. There are: {', '.join(sorted(self._names))}."
        try:
            return str(getattr(self._instance, call["name"])(**call.get("arguments", {})))
        except MemoryError:
            raise
        except Exception as error:  # what a player calls wrongly is told to the player
            self._refused += 1
            return f"{type(error).__name__}: {error}"

    def result(self) -> SeatResult:
        found = next((getattr(self._instance, name) for name in REWARDS if hasattr(self._instance, name)), 0.0)
        score = float(found() if callable(found) else found)
        return SeatResult({ROLE: score}, score, score >= 1.0, {}, {"refused_calls": float(self._refused)})

    def close(self) -> None:
        if (close := getattr(self._instance, "close", None)) is not None:
            close()

    def describe(self) -> dict[str, object]:
        return {"title": self._job.name, "facts": {"first words": self._first[:500]}}
