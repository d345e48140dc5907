"""What a router sees and what it answers. Pure: no clock, no chance, no memory but a router's own bounded one.

Invariants: a router chooses one of the engines it is shown, all of which wholly hold what the request asks for; the
same requests and loads in the same order give the same choices. Whoever sends counts what it sends between two replies
of an engine; what others send is in the depth that a reply carries.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from flexmarl.algorithms.registry import Plugin
from flexmarl.contracts.hardware import Hardware
from flexmarl.contracts.specification.routers import RouterOptions

MARGIN = 4
"""Requests by which a preferred engine may be ahead of the least loaded one before it counts as overloaded."""


class Reason(StrEnum):
    """Why an engine was chosen."""

    ONLY = "only"
    """No other holds what is asked for."""
    NAMED = "named"
    """It was given the turn's group, or goes on with what another had; no router was asked."""
    LEAST_LOADED = "least_loaded"
    PREFIX = "prefix"
    """It made the replies that this prompt begins with."""
    OVERLOADED = "overloaded"
    """The preferred engine is ahead of the others by more than the margin."""
    FEWEST_TOKENS = "fewest_tokens"
    LONG_TAIL = "long_tail"
    """A long reply goes where fewest others run."""
    HARDWARE = "hardware"
    """Its device is of the class that suits the request."""
    NO_SUCH_HARDWARE = "no_such_hardware"
    NEWEST = "newest"
    """It serves the asked version as its newest."""
    OWN_RULE = "own_rule"
    """By a rule that only the router knows: for routers of other distributions."""
    FORMER = "former"
    """It keeps the asked version beside a newer one, and no engine has it as its newest."""


class RouteRequest(NamedTuple):
    """What a router may know of a turn."""

    prompt_tokens: int
    reply_tokens: float
    """Expected number of tokens still to be made."""
    usual_tokens: float = 0.0
    """Expected of an average turn of the run."""
    prefixes: tuple[str, ...] = ()
    """Whose turns begin with the same tokens, the most alike first; empty when unknown."""


@dataclass(slots=True)
class EngineLoad:
    """An engine that may answer, and how busy it is as far as this router knows.

    Whoever keeps one up to date shows it to routers as it stands; they change nothing and keep nothing of it.
    """

    engine: str
    running: int = 0
    """Requests in its slots, by its last answer."""
    waiting: int = 0
    """Requests in its queue, by its last answer."""
    in_flight: int = 0
    """Requests sent from here since that answer."""
    tokens: float = 0.0
    """Expected tokens that it has yet to make of all these."""
    hardware: Hardware = Hardware.ANY
    newest: bool = True
    """Whether the asked version is the last one it loaded."""

    @property
    def outstanding(self) -> int:
        """Return the requests it is believed to have."""
        return self.running + self.waiting + self.in_flight


class Choice(NamedTuple):
    """An engine, why, and the loads that justified it."""

    engine: str
    reason: Reason
    loads: tuple[EngineLoad, ...]


RouterSettings = TypeVar("RouterSettings", bound=RouterOptions)


class Router(Plugin[RouterSettings], ABC):
    """One per run and process: what it remembers is its own."""

    @abstractmethod
    def choose(self, request: RouteRequest, engines: Sequence[EngineLoad]) -> Choice:
        """Return which of some engines answers. Raises ValueError without engines."""


def chosen(load: EngineLoad, reason: Reason, engines: Sequence[EngineLoad]) -> Choice:
    """Return a choice among engines; among one there is none."""
    return Choice(load.engine, reason if len(engines) > 1 else Reason.ONLY, tuple(engines))


def emptiest(engines: Sequence[EngineLoad]) -> EngineLoad:
    """Return the engine with the least outstanding work; equal ones by name. Raises ValueError without engines."""
    if not engines:
        raise ValueError("no engine to choose from")
    best = engines[0]
    least = best.running + best.waiting + best.in_flight
    for load in engines:
        count = load.running + load.waiting + load.in_flight
        if count < least or (count == least and load.engine < best.engine):
            best, least = load, count
    return best
