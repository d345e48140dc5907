"""Games of the package textarena as they are: players are told what it writes, and what they say is their move.

A game whose words have to be fetched from elsewhere is left out: it is looked at where there is no network.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from ..finding import installed, normal, task_number
from ..jobs import Job
from ..schemas import of_settings
from ..shapes import ForeignEnvironment, ForeignEpisode, Offer, SeatAsk, SeatReply, SeatResult

RAW = "-raw"
"""End of the names under which games come without wrappers."""
PLAYERS = (2, 1, 3, 4, 5, 6, 8)
"""Numbers of players that are tried, in this order."""


def offers(job: Job) -> tuple[list[Offer], list[tuple[str, str]]]:
    """Offer every game that begins without a network."""
    if not installed("textarena") or normal(job.distribution) != "textarena":
        return [], []
    registry = import_module("textarena.envs.registration").ENV_REGISTRY
    found, missing = [], []
    for name in sorted(one for one in registry if one.endswith(RAW)):
        spec = registry[name]
        try:
            found.append(_offer(name, spec))
        except Exception as error:  # foreign code: a game that cannot begin is left out with what it said
            missing.append((name.removesuffix(RAW), f"{type(error).__name__}: {error}"))
    return found, missing


def _offer(name: str, spec: Any) -> Offer:
    players = _players(name)
    roles = tuple(f"player_{number}" for number in range(players))
    shown = name.removesuffix(RAW)
    summary = f"The game {shown} of TextArena for {players} player{'s' if players > 1 else ''}."
    options = of_settings(dict(getattr(spec, "kwargs", None) or {}))
    return Offer(shown, "textarena", name, shown, summary, options, roles, roles[:1])


def _players(name: str) -> int:
    """Return with how many players a game begins. Raises what it raised last."""
    last: Exception = LookupError("no number of players fits")
    for count in PLAYERS:
        try:
            _begun(name, {}, count, 1).get_observation()
        except Exception as error:  # the next number may fit
            last = error if count == PLAYERS[0] else last
        else:
            return count
    raise last


def _begun(name: str, options: dict[str, Any], players: int, seed: int) -> Any:
    env = import_module("textarena").make(name, **options)
    env.reset(num_players=players, seed=seed)
    return env


def environment(job: Job) -> ForeignEnvironment:
    """Return a game with its options."""
    import_module("textarena")
    return ArenaGame(job)


class ArenaGame:
    def __init__(self, job: Job) -> None:
        self._job = job

    def begin(self, task_seed: int, held_out: bool, seed: int) -> ForeignEpisode:
        roles = self._job.roles
        env = _begun(f"{self._job.name}{RAW}", self._job.options, len(roles), task_number(task_seed, held_out))
        return ArenaEpisode(env, roles, self._job.name)


class ArenaEpisode:
    """A game, one player after the other."""

    def __init__(self, env: Any, roles: tuple[str, ...], title: str) -> None:
        self._env = env
        self._roles = roles
        self._title = title
        self._done = False
        self._rewards: dict[int, float] = {}
        self._player, self._text = self._listen()
        self._first = self._text

    def _listen(self) -> tuple[int, str]:
        player, observation = self._env.get_observation()
        return int(player), _text(observation)

    def asks(self) -> list[SeatAsk]:
        return [] if self._done else [SeatAsk(self._roles[self._player], self._text)]

    def act(self, replies: list[SeatReply]) -> None:
        self._done, _ = self._env.step(replies[0].text)
        if not self._done:
            self._player, self._text = self._listen()

    def result(self) -> SeatResult:
        raw = self._env.close()[0] if self._done else {}
        self._rewards = {int(player): float(reward) for player, reward in (raw or {}).items()}
        several = len(self._roles) > 1
        scores = {}
        for number, role in enumerate(self._roles):
            reward = self._rewards.get(number, 0.0)
            # From -1 to 1 where somebody wins what others lose; a single player has the share that was reached.
            scores[role] = (reward + 1.0) / 2.0 if several else max(reward, 0.0)
        team = sum(scores.values()) / len(scores)
        return SeatResult(scores, team, team >= 1.0)

    def close(self) -> None:
        return

    def describe(self) -> dict[str, object]:
        return {"title": self._title, "facts": {"first words": self._first[:500]}}


def _text(observation: Any) -> str:
    if isinstance(observation, str):
        return observation
    parts: Iterable[Any] = observation
    return "\n".join(str(part[1]) for part in parts)
