"""What graphs of a team do with what was said: who speaks next, and which answer is the team's.

Invariant: a graph is a pure function of what was said so far. It has no state of its own, so a copy of an episode is a
copy of what was said. What models write names seats and verdicts by four conventions, which `docs/teams.md` states; a
reply that keeps none of them is read by a rule, never refused.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from flexmarl.algorithms.registry import Plugin, Registry
from flexmarl.contracts.specification.graphs import (
    GRAPH,
    DebateGraph,
    DialogueGraph,
    GraphOptions,
    HubGraph,
    MixtureGraph,
    SequenceGraph,
    VerifyGraph,
)

Act = Literal["answer", "plan", "verify", "ask", "help", "call"]
"""What a turn is for: to answer the question, to say how to, to accept or reject the last answer, to ask workers or
answer, to answer what one was asked, to name who speaks next."""

_VERDICT = re.compile(r"\b(accept|reject)", re.IGNORECASE)
_ASKED = re.compile(r"^\s*ask\s+(\w+)\s*:[ \t]*(\S.*?)\s*$", re.IGNORECASE | re.MULTILINE)
_NEXT = re.compile(r"^\s*(?:next\s*:\s*(\w+)|(end))\b", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Part:
    """A turn that is to be taken."""

    seat: str
    act: Act
    question: str = ""
    """What the seat is asked in place of the team's question; empty: that one."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A turn that was taken."""

    seat: str
    stage: int
    """Statements of one stage were made at once."""
    act: Act
    text: str
    answer: str = ""
    """What it answers, as its question reads it; empty where it has no answer."""
    score: float | None = None
    """What the answer or the verdict is worth, from 0 to 1; None: it is neither."""
    own: float | None = None
    """What it is worth to its seat, from 0 to 1; None: that is paid with the team."""


Said = Sequence[Statement]
GraphSettings = TypeVar("GraphSettings", bound=GraphOptions)


class Graph(Plugin[GraphSettings], ABC):
    """Who speaks when."""

    @abstractmethod
    def next(self, said: Said) -> tuple[Part, ...]:
        """Return the turns that are to be taken at once; empty where the talk is over."""

    def act_of(self, part: Part, text: str) -> Act:
        """Return what a turn that was to be taken came to."""
        return part.act

    def decided(self, said: Said) -> Statement | None:
        """Return the statement that is the team's answer; None where nobody has answered."""
        return next((one for one in reversed(said) if one.act == "answer"), None)


def verdict(text: str) -> bool | None:
    """Return whether a reply accepts, by its last word that does or rejects; None without such a word."""
    found = _VERDICT.findall(text)
    return found[-1].lower() == "accept" if found else None


def _stage(said: Said) -> int:
    """Return the number of the next stage."""
    return said[-1].stage + 1 if said else 0


class SequencePlay(Graph[SequenceGraph]):
    Options = SequenceGraph

    def next(self, said: Said) -> tuple[Part, ...]:
        order, stage = self.options.order, _stage(said)
        if stage == len(order) * self.options.rounds:
            return ()
        seat = order[stage % len(order)]
        return (Part(seat.name, seat.does),)


class _Rounds(Graph[GraphSettings]):
    """All answer at once, stage by stage."""

    def next(self, said: Said) -> tuple[Part, ...]:
        stages, stage = self.options.stages(), _stage(said)
        return tuple(Part(name, "answer") for name in stages[stage]) if stage < len(stages) else ()

    def decided(self, said: Said) -> Statement | None:
        """Return the first of the most frequent answers of the last stage."""
        last = [one for one in said if one.stage == said[-1].stage]
        votes = Counter(one.answer for one in last if one.answer)
        chosen = max(votes, key=lambda answer: votes[answer], default="")
        return next((one for one in last if one.answer == chosen), None)


class DebatePlay(_Rounds[DebateGraph]):
    Options = DebateGraph


class MixturePlay(_Rounds[MixtureGraph]):
    Options = MixtureGraph


class VerifyPlay(Graph[VerifyGraph]):
    Options = VerifyGraph

    def next(self, said: Said) -> tuple[Part, ...]:
        if said and said[-1].act == "answer":
            return (Part(self.options.verifier.name, "verify"),)
        over = bool(said) and (verdict(said[-1].text) is True or len(said) == 2 * self.options.rounds)
        return () if over else (Part(self.options.generator.name, "answer"),)


class HubPlay(Graph[HubGraph]):
    Options = HubGraph

    def next(self, said: Said) -> tuple[Part, ...]:
        planner, asked = self.options.planner.name, sum(one.act == "ask" for one in said)
        if said and said[-1].act == "answer":
            return ()
        if said and said[-1].act == "ask":
            questions = self.questions(said[-1].text)
            return tuple(Part(name, "help", question) for name, question in questions.items())
        return (Part(planner, "ask" if asked < self.options.rounds else "answer"),)

    def act_of(self, part: Part, text: str) -> Act:
        return "answer" if part.act == "ask" and not self.questions(text) else part.act

    def questions(self, text: str) -> dict[str, str]:
        """Return what a planner asks, by worker in their order; of several questions to one worker all lines."""
        found: dict[str, str] = {}
        for name, question in _ASKED.findall(text):
            found[name.lower()] = f"{found[name.lower()]} {question}" if name.lower() in found else question
        return {seat.name: found[seat.name] for seat in self.options.workers if seat.name in found}


class DialoguePlay(Graph[DialogueGraph]):
    Options = DialogueGraph

    def next(self, said: Said) -> tuple[Part, ...]:
        spoken = [one for one in said if one.act == "answer"]
        if said and said[-1].act == "call":
            name = self.called(said[-1].text, len(spoken))
            return (Part(name, "answer"),) if name else ()
        if len(spoken) == self.options.turns:
            return ()
        return (Part(self.options.moderator.name, "call"),)

    def called(self, text: str, spoken: int) -> str:
        """Return who is to speak, empty where the talk is to end: not before anybody has spoken."""
        names = [seat.name for seat in self.options.speakers]
        found = _NEXT.findall(text)
        name, end = found[-1] if found else ("", "")
        if end and spoken:
            return ""
        return name.lower() if name.lower() in names else names[spoken % len(names)]


GRAPHS: Registry[Graph[Any]] = Registry(
    GRAPH, (SequencePlay, DebatePlay, MixturePlay, VerifyPlay, HubPlay, DialoguePlay)
)


def graph_of(options: GraphOptions) -> Graph[Any]:
    """Return what plays a graph. Raises LookupError for a type that this process does not have."""
    return GRAPHS.make(options)
