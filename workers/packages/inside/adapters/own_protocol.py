"""Environments of FlexMARL's own protocol: entry points `flexmarl.environment`, as docs/plugins.md describes them.

The package's interpreter has the protocol's modules, since its builder put them there. Words of a closed vocabulary
become messages: what a seat sees, then which words are legal.
"""

import random
import re
from importlib.metadata import entry_points
from typing import Any

from ..finding import installed, named_by
from ..jobs import Job
from ..shapes import ForeignEnvironment, ForeignEpisode, Offer, SeatAsk, SeatReply, SeatResult

GROUP = "flexmarl.environment"
OF_THE_PLATFORM = ("type", "latency", "setup_timeout_s", "step_timeout_s", "score_timeout_s", "close_timeout_s")
"""Settings that the specification says beside the options."""


def offers(job: Job) -> tuple[list[Offer], list[tuple[str, str]]]:
    """Offer what the entry points name."""
    if job.entry or not installed("workers.rollout.environments.base"):
        return [], []
    found, missing = [], []
    for point in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        try:
            found.append(_offer(point.name, point.load()))
        except Exception as error:  # foreign code: what cannot be loaded is left out with the reason
            missing.append((point.name, f"{type(error).__name__}: {error}"))
    return found, missing


def _offer(name: str, kind: Any) -> Offer:
    facts = kind.model_validate({}).facts()
    schema = kind.model_json_schema()
    schema["properties"] = {key: one for key, one in schema["properties"].items() if key not in OF_THE_PLATFORM}
    roles = tuple(role.name for role in facts.roles)
    opens = tuple(role.name for role in facts.roles if role.opens) or roles[:1]
    turns = max(role.max_turns for role in facts.roles)
    entry = f"{kind.__module__}:{kind.__qualname__}"
    return Offer(name, "flexmarl", entry, facts.title, kind.summary(), schema, roles, opens, facts.best_score, turns)


def environment(job: Job) -> ForeignEnvironment:
    """Return an environment with its options."""
    return OwnEnvironment(job)


class OwnEnvironment:
    def __init__(self, job: Job) -> None:
        options = named_by(job.entry)(**job.options)
        self._family = named_by(options.implementation)(options)
        self._family.prepare()

    def begin(self, task_seed: int, held_out: bool, seed: int) -> ForeignEpisode:
        return OwnEpisode(self._family.make(task_seed, held_out, random.Random(seed)))


class OwnEpisode:
    """An episode of the product's protocol."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._asked: list[Any] = []

    def asks(self) -> list[SeatAsk]:
        self._asked = self._environment.asks()
        return [_ask(ask) for ask in self._asked]

    def act(self, replies: list[SeatReply]) -> None:
        kind = named_by("workers.rollout.environments.base:Reply")
        pairs = zip(self._asked, replies, strict=True)
        self._environment.act([kind(reply.role, _said(ask, reply.text), _message(reply)) for ask, reply in pairs])

    def result(self) -> SeatResult:
        if self._environment.asks():
            return SeatResult({}, 0.0, False)  # cut off: the protocol has no account of an unfinished episode
        outcome = self._environment.outcome()
        return SeatResult(outcome.scores, outcome.team_score, outcome.solved, outcome.turn_rewards, outcome.facts)

    def close(self) -> None:
        if (close := getattr(self._environment, "close", None)) is not None:
            close()

    def describe(self) -> dict[str, object]:
        described: dict[str, object] = self._environment.describe()
        return described


def _ask(ask: Any) -> SeatAsk:
    if not ask.messages:
        legal = f"Answer with one of: {', '.join(ask.allowed)}." if ask.allowed else ""
        return SeatAsk(ask.role, "\n".join(part for part in (ask.observation, legal) if part))
    system = [one.content for one in ask.messages if one.role == "system"]
    results = tuple((one.tool_call_id, one.content) for one in ask.messages if one.role == "tool")
    text = "\n\n".join(one.content for one in ask.messages if one.role == "user")
    return SeatAsk(ask.role, text, "\n\n".join(system), tuple(ask.tools), results)


def _said(ask: Any, text: str) -> str:
    """Return the words of a closed vocabulary that a reply has, as many as were asked for; else all of it."""
    if ask.messages or not ask.allowed:
        return text
    words = [word for word in re.findall(r"[\w-]+", text) if word in ask.allowed]
    return " ".join(words[: ask.max_tokens])


def _message(reply: SeatReply) -> Any:
    message = named_by("flexmarl.language.messages:Message")
    call = named_by("flexmarl.language.messages:ToolCall")
    return message("assistant", reply.text, tool_calls=tuple(call(**one) for one in reply.calls))
