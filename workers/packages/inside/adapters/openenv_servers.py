"""Environments of OpenEnv, unchanged: an episode is a session of their own server, spoken with over `/ws`.

The server is the application that the package makes. It is called in this process as a web server calls it, so that
its own code makes the environment, reads actions and writes observations, and no port is needed. Each process has a
server of its own with one session: limits of concurrency never meet.

One seat, `player`. The episode ends when the environment says so, or, where actions are calls of tools, when the player
calls none.
"""

import os
from dataclasses import replace
from importlib import import_module
from typing import Any

from ..asgi import LocalServer
from ..finding import task_number
from ..jobs import Job
from ..openenv_actions import ActionForm, form_of
from ..openenv_apps import LIBRARY, SCHEMA, SESSIONS, FoundServer, found_at, servers_in, uses_library
from ..openenv_episode import FACTORY, ROLE, UNFINISHED, ServedGame, ServerError, Worth, asked
from ..schemas import of_callable, summary_of
from ..shapes import ForeignEnvironment, ForeignEpisode, Offer, ProgramFault, SeatAsk, SeatReply, SeatResult

TURNS = 32
VARIABLES, REWARD = "variables", "episode_reward"
OWN_OPTIONS: dict[str, dict[str, Any]] = {
    VARIABLES: {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "default": {},
        "description": "Environment variables that its server reads when it begins",
    },
    REWARD: {
        "enum": ["sum", "last"],
        "default": "sum",
        "description": "What an episode is worth: the sum of its rewards, or the last of them",
    },
    UNFINISHED: {
        "type": "number",
        "description": "What an episode is worth that ends before its environment gave any reward; it fails otherwise",
    },
}
"""Options beside those of `reset`, which does not get them."""
GIVEN = ("seed", "episode_id")
"""What `reset` is told beside the options."""


# What a package offers ------------------------------------------------------------------------------------------------


def offers(job: Job) -> tuple[list[Offer], list[tuple[str, str]]]:
    """Offer the servers of a distribution whose actions can be said."""
    if not uses_library(job):
        return [], []
    found, broken = servers_in(job)
    offered: dict[str, Offer] = {}
    for one in found:
        try:
            offer = _offer(one)
            # Names of a package differ: of two servers that call themselves the same, one is called as its module is.
            name = offer.name if offer.name not in offered else one.entry.partition(":")[0]
            offered[name] = replace(offer, name=name)
        except Exception as error:  # foreign code: a server that cannot be asked is left out with the reason
            broken.append((one.name, str(error) if isinstance(error, ProgramFault) else repr(error)))
    return list(offered.values()), broken


def _offer(found: FoundServer) -> Offer:
    server = LocalServer(found.app)
    try:
        server.begin()
        form = form_of(server.get(SCHEMA)["action"], found.action)
    finally:
        server.end()
    summary = _summary(found) or f"An environment of OpenEnv whose actions are {form.kind}."
    return Offer(
        found.name, "openenv", found.entry, found.name, summary, _options(found), (ROLE,), (ROLE,), turns=TURNS
    )


def _summary(found: FoundServer) -> str:
    """Return what its own class says of itself; what a class of the library says is nothing of it."""
    own = isinstance(found.factory, type) and vars(found.factory).get("__doc__")
    return summary_of(found.factory) if own else ""


def _options(found: FoundServer) -> dict[str, Any]:
    """Return the schema of what `reset` takes; everything, where that is not known."""
    reset = _reset(found)
    schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}
    if reset is not None:
        schema = of_callable(reset, without=GIVEN)
    return {**schema, "properties": {**schema["properties"], **OWN_OPTIONS}}


def _reset(found: FoundServer) -> Any:
    """Return the method that the server calls, or None."""
    kind = found.factory
    if not isinstance(kind, type):
        return None
    # The base class has one that calls `reset`, or, in older versions of the library, none.
    base = getattr(import_module(f"{LIBRARY}.core.env_server.interfaces").Environment, "reset_async", None)
    own = getattr(kind, "reset_async", base)
    return own if own is not base else getattr(kind, "reset", None)


# How it is played -----------------------------------------------------------------------------------------------------


def environment(job: Job) -> ForeignEnvironment:
    """Return an environment with its options. Raises whatever importing its server raises."""
    taken = dict(job.options)
    os.environ.update(taken.pop(VARIABLES, {}))
    worth = Worth(taken.pop(REWARD, "sum") == "last", taken.pop(UNFINISHED, None))
    return ServedEnvironment(found_at(job.entry), taken, worth, job.name)


class ServedEnvironment:
    """A server, which begins in the process that plays."""

    def __init__(self, found: FoundServer, options: dict[str, Any], worth: Worth, title: str) -> None:
        self._found = found
        self._options = options
        self._worth = worth
        self._title = title
        self._server: LocalServer | None = None
        self._form: ActionForm | None = None

    def begin(self, task_seed: int, held_out: bool, seed: int) -> ForeignEpisode:
        server, form = self._begun()
        number = task_number(task_seed, held_out)
        given = {**self._options, "seed": number, "episode_id": f"{number}-{seed}"}
        return ServedEpisode(server, self._found, ServedGame(form, self._worth), given, self._title)

    def _begun(self) -> tuple[LocalServer, ActionForm]:
        if self._server is None or self._form is None:
            server = LocalServer(self._found.app)
            server.begin()
            self._form = form_of(server.get(SCHEMA)["action"], self._found.action)
            self._server = server
        return self._server, self._form


class ServedEpisode:
    """An episode of one player, in a session of the server."""

    def __init__(
        self, server: LocalServer, found: FoundServer, game: ServedGame, given: dict[str, Any], title: str
    ) -> None:
        self._server = server
        self._game = game
        self._title = title
        server.connect(SESSIONS)
        try:
            asked(game.begin(given), server.exchange)
        except ServerError as error:
            raise ProgramFault(f"{error} ({_unmade(found)})" if error.code == FACTORY else str(error)) from None

    def asks(self) -> list[SeatAsk]:
        return self._game.asks()

    def act(self, replies: list[SeatReply]) -> None:
        asked(self._game.act(replies[0]), self._server.exchange)

    def result(self) -> SeatResult:
        return self._game.result()

    def close(self) -> None:
        self._server.hang_up()

    def describe(self) -> dict[str, object]:
        return {"title": self._title, "facts": {"first words": self._game.first[:500]}}


def _unmade(found: FoundServer) -> str:
    """Say why no environment can be made: the server tells nobody."""
    try:
        found.factory()
    except Exception as error:  # foreign code
        return f"{type(error).__name__}: {error}"
    return "it could be made the next time"
