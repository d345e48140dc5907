"""What adapters give and take: plain values, written as one JSON object per line to whoever plays the episode."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

MOST_LINE = 2**20
"""Bytes of a line; what is longer is refused by name, here and by the reader."""
MOST_REASON = 2000
ADAPTERS = ("flexmarl", "gymnasium", "textarena", "pettingzoo", "trl", "openenv")
"""Protocols of environments that are understood, in the order in which they are looked for."""


class TooLarge(ValueError):
    """What an environment says is longer than a line may be."""


class NotFinite(ValueError):
    """A reward or a fact is no finite number."""


class ProgramFault(RuntimeError):
    """Why a program cannot be played or earned nothing; its text says all of it."""


class NoReward(LookupError):
    """A program does not say what it earned."""


@dataclass(frozen=True)
class SeatAsk:
    """A seat that must act now."""

    role: str
    text: str
    """What is new to it, as the message of a user."""
    system: str = ""
    """What it is told before anything else, at its first turn."""
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas of functions that it may call."""
    results: tuple[tuple[str, str], ...] = ()
    """Results of its last calls: id of the call, text; they stand before `text`."""


@dataclass(frozen=True)
class SeatReply:
    """What a seat said."""

    role: str
    text: str
    calls: tuple[dict[str, Any], ...] = ()
    """Calls of tools: name, arguments, id."""


@dataclass(frozen=True)
class SeatResult:
    """What an episode came to."""

    scores: dict[str, float]
    team_score: float
    solved: bool
    turn_rewards: dict[tuple[str, int], float] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Offer:
    """An environment of a package, as its manifest names it."""

    name: str
    adapter: str
    entry: str
    """How the adapter finds it again."""
    title: str
    summary: str
    options: dict[str, Any]
    """JSON Schema of its options."""
    roles: tuple[str, ...]
    opens: tuple[str, ...]
    """Roles that are asked before anybody has spoken."""
    best_score: float = 1.0
    turns: int = 16
    """Turns of a seat after which an episode ends, where a run does not say."""


class ForeignEpisode(Protocol):
    """One attempt of one episode of a foreign environment."""

    def asks(self) -> list[SeatAsk]:
        """Return who must act now; empty when the episode is over."""

    def act(self, replies: list[SeatReply]) -> None:
        """Take the replies to the last asks, in their order."""

    def result(self) -> SeatResult:
        """Return what the episode came to, also where it was cut off."""

    def close(self) -> None:
        """Let go of what the episode holds."""

    def describe(self) -> dict[str, object]:
        """Return the task for people: {title, facts}."""


class ForeignEnvironment(Protocol):
    """A foreign environment with its options."""

    def begin(self, task_seed: int, held_out: bool, seed: int) -> ForeignEpisode:
        """Begin an episode; equal seeds give the same one."""


def line(value: Mapping[str, Any]) -> bytes:
    """Write an answer. Raises TooLarge and NotFinite, which say what is legal."""
    _check_numbers(value.get("score"))
    texts = sum(len(message["content"]) for ask in value.get("asks", ()) for message in ask["messages"])
    if texts > MOST_LINE:
        raise TooLarge(f"oversized: its messages have {texts} characters, at most {MOST_LINE} are read")
    written = json.dumps(value, allow_nan=False, default=str).encode("utf-8", "replace") + b"\n"
    if len(written) > MOST_LINE:
        raise TooLarge(f"oversized: its answer has {len(written)} bytes, at most {MOST_LINE} are read")
    return written


def _check_numbers(score: Mapping[str, Any] | None) -> None:
    if score is None:
        return
    named = {**score["scores"], "team": score["team_score"], **score["facts"]}
    named |= {f"{role}, turn {turn}": reward for role, turn, reward in score["turn_rewards"]}
    for name, number in named.items():
        if not math.isfinite(number):
            raise NotFinite(f"nonfinite: the score of {name} is {number}, not a finite number")


def broke(error: BaseException, where: str = "") -> dict[str, Any]:
    """Return the answer that names what an environment raised."""
    named = isinstance(error, TooLarge | NotFinite | NoReward | ProgramFault)
    text = str(error) if named else f"{type(error).__name__}: {error}"
    return {"type": "broke", "reason": f"{where}{text}"[:MOST_REASON]}


def asks_of(asks: list[SeatAsk]) -> list[dict[str, Any]]:
    """Return asks as they are written."""
    return [_ask(ask) for ask in asks]


def _ask(ask: SeatAsk) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": ask.system}] if ask.system else []
    messages += [{"role": "tool", "content": text, "tool_call_id": call} for call, text in ask.results]
    if ask.text or not ask.results:
        messages.append({"role": "user", "content": ask.text})
    return {"role": ask.role, "observation": "", "messages": messages, "tools": list(ask.tools)}


def score_of(result: SeatResult) -> dict[str, Any]:
    """Return a result as it is written. Raises TypeError or ValueError for what are no numbers."""
    return {
        "scores": {role: float(score) for role, score in result.scores.items()},
        "team_score": float(result.team_score),
        "solved": bool(result.solved),
        "turn_rewards": [(role, turn, float(reward)) for (role, turn), reward in result.turn_rewards.items()],
        "facts": {name: float(value) for name, value in result.facts.items()},
    }


def offered(offer: Offer) -> dict[str, Any]:
    """Return an offer as it stands in a manifest."""
    return asdict(offer)
