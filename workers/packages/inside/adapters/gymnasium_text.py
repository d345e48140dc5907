"""Environments of Gymnasium that can be told in words: text, numbers and small arrays in, text or a number out.

One seat, `player`. An environment that draws itself as text (`ansi`) shows that as well. Its reward is that of the
turn; the episode's score is their sum.
"""

import re
from importlib import import_module
from typing import Any

from ..finding import installed, modules_of, named_by, task_number
from ..jobs import Job
from ..schemas import of_callable, of_settings, summary_of
from ..shapes import ForeignEnvironment, ForeignEpisode, Offer, SeatAsk, SeatReply, SeatResult
from .spaces import NoMove, action_of, choices, readable, told

ROLE = "player"
ILLEGAL = "illegal"
COLOURS = r"\x1b\[[0-9;]*m"
"""What terminals draw in colours with."""


def offers(job: Job) -> tuple[list[Offer], list[tuple[str, str]]]:
    """Offer the registered environments of a distribution whose spaces can be told, or the one that was named."""
    if not installed("gymnasium"):
        return [], []
    gymnasium = import_module("gymnasium")
    if job.entry:
        kind = named_by(job.entry)
        if not (isinstance(kind, type) and issubclass(kind, gymnasium.Env)):
            return [], []
        options = of_callable(kind, ("render_mode",))
        return [_offer(kind.__name__, job.entry, summary_of(kind), options)], []
    modules = modules_of(job)
    for module in modules:
        import_module(module)
    found, missing = [], []
    for name, spec in sorted(gymnasium.registry.items()):
        entry = spec.entry_point if isinstance(spec.entry_point, str) else getattr(spec.entry_point, "__module__", "")
        if entry.partition(".")[0].partition(":")[0] not in modules:
            continue
        try:
            env = _made(name, {})
            readable(env.observation_space, env.action_space)
            summary = summary_of(type(env.unwrapped)) or f"The environment {name} of Gymnasium."
            found.append(_offer(name, name, summary, of_settings(dict(spec.kwargs))))
            env.close()
        except Exception as error:  # foreign code: what cannot be made or told is left out with the reason
            missing.append((name, f"{type(error).__name__}: {error}"))
    return found, missing


def _offer(name: str, entry: str, summary: str, options: dict[str, Any]) -> Offer:
    return Offer(name, "gymnasium", entry, name, summary, options, (ROLE,), (ROLE,), turns=64)


def _made(entry: str, options: dict[str, Any]) -> Any:
    gymnasium = import_module("gymnasium")
    if ":" in entry:
        return named_by(entry)(**options)
    try:
        return gymnasium.make(entry, render_mode="ansi", disable_env_checker=True, **options)
    except Exception:  # most draw no text
        return gymnasium.make(entry, disable_env_checker=True, **options)


def environment(job: Job) -> ForeignEnvironment:
    """Return an environment with its options."""
    if not job.entry:
        raise ValueError("the manifest names no entry")
    for module in modules_of(job):
        import_module(module)
    _made(job.entry, job.options).close()
    return GymEnvironment(job)


class GymEnvironment:
    def __init__(self, job: Job) -> None:
        self._job = job

    def begin(self, task_seed: int, held_out: bool, seed: int) -> ForeignEpisode:
        env = _made(self._job.entry, self._job.options)
        return GymEpisode(env, task_number(task_seed, held_out), self._job.name)


class GymEpisode:
    """An episode of one player."""

    def __init__(self, env: Any, seed: int, title: str) -> None:
        self._env = env
        self._title = title
        env.action_space.seed(seed)
        observation, _ = env.reset(seed=seed)
        self._text = self._told(observation)
        self._first = self._text
        self._rewards: list[float] = []
        self._illegal = 0
        self._over = False
        self._won = False

    def _told(self, observation: Any) -> str:
        text = told(observation)
        if getattr(self._env, "render_mode", None) == "ansi":
            drawn = re.sub(COLOURS, "", str(self._env.render()))
            text = f"{drawn.strip()}\n{text}"
        return text

    def asks(self) -> list[SeatAsk]:
        if self._over:
            return []
        legal = choices(self._env.action_space)
        return [SeatAsk(ROLE, f"{self._text}\n{legal}" if legal else self._text)]

    def act(self, replies: list[SeatReply]) -> None:
        try:
            action = action_of(self._env.action_space, replies[0].text)
        except NoMove as refused:
            self._illegal += 1
            self._rewards.append(0.0)
            self._text = str(refused)
            return
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self._rewards.append(float(reward))
        self._over = bool(terminated or truncated)
        self._won = bool(terminated) and float(reward) > 0.0
        self._text = self._told(observation)

    def result(self) -> SeatResult:
        total = sum(self._rewards)
        turns = {(ROLE, turn): reward for turn, reward in enumerate(self._rewards)}
        return SeatResult({ROLE: total}, total, self._won, turns, {ILLEGAL: float(self._illegal)})

    def close(self) -> None:
        self._env.close()

    def describe(self) -> dict[str, object]:
        return {"title": self._title, "facts": {"first words": self._first[:500]}}
