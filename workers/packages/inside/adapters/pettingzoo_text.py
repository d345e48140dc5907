"""Games of PettingZoo in words: each player is told what it sees and which moves are legal, and answers with one.

A game that is played in parallel is played in turns by the package's own wrapper. A player's score is the sum of its
rewards, moved from -1..1 to 0..1.
"""

import math
import pkgutil
from importlib import import_module
from typing import Any

from ..finding import installed, modules_of, named_by, normal, task_number
from ..jobs import Job
from ..schemas import of_callable, summary_of
from ..shapes import ForeignEnvironment, ForeignEpisode, Offer, SeatAsk, SeatReply, SeatResult
from .spaces import NoMove, action_of, choices, readable, told

FAMILIES = ("classic", "butterfly", "sisl", "mpe", "atari")
MAKERS = ("env", "parallel_env")
MOST_PLAYERS = 12


def offers(job: Job) -> tuple[list[Offer], list[tuple[str, str]]]:
    """Offer the games of the package, or of a distribution whose modules make some."""
    if not installed("pettingzoo"):
        return [], []
    found, missing = [], []
    for name, entry in _candidates(job):
        try:
            found.append(_offer(name, entry))
        except Exception as error:  # foreign code: what cannot be made or told is left out with the reason
            missing.append((name, f"{type(error).__name__}: {error}"))
    return found, missing


def _candidates(job: Job) -> list[tuple[str, str]]:
    """Return names and makers that may be games."""
    if job.entry:
        return [(job.entry.rpartition(":")[2], job.entry)] if _makes_games(job.entry) else []
    if normal(job.distribution) != "pettingzoo":
        modules = [name for name in modules_of(job) if hasattr(import_module(name), "env")]
        return [(name, f"{name}:env") for name in modules]
    found = []
    for family in FAMILIES:
        if (package := _family(family)) is not None:
            names = [
                one.name for one in pkgutil.iter_modules(package.__path__) if one.name.rpartition("_v")[2].isdigit()
            ]
            found += [(name, f"pettingzoo.{family}.{name}:env") for name in names]
    return found


def _family(name: str) -> Any:
    """Return a family of games, None where it is not there or has moved to another distribution."""
    try:
        return import_module(f"pettingzoo.{name}")
    except ImportError:
        return None


def _makes_games(entry: str) -> bool:
    kind = named_by(entry)
    base = import_module("pettingzoo")
    return entry.endswith(tuple(f":{name}" for name in MAKERS)) or (
        isinstance(kind, type) and issubclass(kind, base.AECEnv | base.ParallelEnv)
    )


def _offer(name: str, entry: str) -> Offer:
    env = _made(entry, {})
    env.reset(seed=1)
    roles = tuple(map(str, env.possible_agents))
    if len(roles) > MOST_PLAYERS:
        raise ValueError(f"it has {len(roles)} players, at most {MOST_PLAYERS} have seats")
    for agent in env.possible_agents:
        readable(_seen(env.observation_space(agent)), env.action_space(agent))
    options = of_callable(_raw(entry), ("render_mode", "screen_scaling", "kwargs"))
    env.close()
    summary = summary_of(import_module(entry.partition(":")[0])) or f"The game {name} of PettingZoo."
    return Offer(name, "pettingzoo", entry, name, summary, options, roles, roles[:1], turns=64)


def _raw(entry: str) -> Any:
    """Return what says the options: games are wrapped by functions that take anything."""
    module = import_module(entry.partition(":")[0])
    return getattr(module, "raw_env", None) or named_by(entry)


def _seen(space: Any) -> Any:
    """Return the part of a space that is told: legal moves are told apart."""
    return space.spaces.get("observation", space) if type(space).__name__ == "Dict" else space


def _made(entry: str, options: dict[str, Any]) -> Any:
    made = named_by(entry)(**options)
    if isinstance(made, import_module("pettingzoo").ParallelEnv):
        return import_module("pettingzoo.utils.conversions").parallel_to_aec(made)
    return made


def environment(job: Job) -> ForeignEnvironment:
    """Return a game with its options."""
    _made(job.entry, job.options).close()
    return ZooGame(job)


class ZooGame:
    def __init__(self, job: Job) -> None:
        self._job = job

    def begin(self, task_seed: int, held_out: bool, seed: int) -> ForeignEpisode:
        env = _made(self._job.entry, self._job.options)
        return ZooEpisode(env, task_number(task_seed, held_out), self._job)


class ZooEpisode:
    """A game, one player after the other."""

    def __init__(self, env: Any, seed: int, job: Job) -> None:
        self._env = env
        self._job = job
        self._rewards = dict.fromkeys(map(str, env.possible_agents), 0.0)
        self._illegal = 0
        self._note = ""
        env.reset(seed=seed)
        self._counted: set[str] = set()
        self._pass_the_dead()
        self._first = self._text() if self._env.agents else ""

    def _pass_the_dead(self) -> None:
        """Let players who are out leave, as the protocol wants it."""
        while self._env.agents and any(self._env.last(observe=False)[2:4]):
            self._collect()
            self._env.step(None)

    def _collect(self) -> None:
        agent = str(self._env.agent_selection)
        self._rewards[agent] += float(self._env.last(observe=False)[1])

    def _legal(self, observation: Any) -> list[int] | None:
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        if mask is None:
            info = self._env.infos.get(self._env.agent_selection) or {}
            mask = info.get("action_mask")
        return None if mask is None else [place for place, fits in enumerate(mask) if fits]

    def _observation(self) -> Any:
        return self._env.observe(self._env.agent_selection)

    def _text(self) -> str:
        observation = self._observation()
        seen = observation.get("observation", observation) if isinstance(observation, dict) else observation
        space = self._env.action_space(self._env.agent_selection)
        parts = [self._note, told(seen), choices(space, self._legal(observation))]
        return "\n".join(part for part in parts if part)

    def asks(self) -> list[SeatAsk]:
        return [SeatAsk(str(self._env.agent_selection), self._text())] if self._env.agents else []

    def act(self, replies: list[SeatReply]) -> None:
        agent = self._env.agent_selection
        try:
            action = action_of(self._env.action_space(agent), replies[0].text, self._legal(self._observation()))
        except NoMove as refused:
            self._illegal += 1
            self._note = str(refused).partition(". ")[0] + "."
            return
        self._note = ""
        self._collect()
        self._env.step(action)
        self._pass_the_dead()

    def result(self) -> SeatResult:
        for agent in self._env.agents:  # cut off: what is not counted yet
            self._rewards[str(agent)] += float(self._env._cumulative_rewards.get(agent, 0.0))
        scores = {role: (reward + 1.0) / 2.0 for role, reward in self._rewards.items()}
        team = math.fsum(scores.values()) / len(scores)
        return SeatResult(scores, team, team >= 1.0, {}, {"illegal": float(self._illegal)})

    def close(self) -> None:
        self._env.close()

    def describe(self) -> dict[str, object]:
        return {"title": self._job.name, "facts": {"first words": self._first[:500]}}
