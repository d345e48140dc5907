"""Plays the episodes of one environment: says whether it can be had, then forks a process for each that plays.

Orders and answers are lines of JSON, as `workers.rollout.isolation.lines` names them. Every answer is checked here,
so that what is too long or no number fails by name; whoever reads checks again, since foreign code can write as well.
"""

import gc
import json
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO, Any

from .adapters import environment_of
from .hosting import on_lines, serve
from .jobs import Job, confined
from .shapes import (
    ForeignEnvironment,
    ForeignEpisode,
    SeatAsk,
    SeatReply,
    TooLarge,
    asks_of,
    broke,
    line,
    score_of,
)

_SEEDS = 2**32


def main(arguments: Sequence[str]) -> None:
    """Serve orders until the worker hangs up."""
    control = socket.socket(fileno=int(arguments[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job, how = confined(arguments)
    try:
        environment = environment_of(job)
    except BaseException as error:  # foreign code: whatever importing it raises is the reason of every episode
        control.sendall(line(broke(error)))
        sys.exit(1)
    gc.freeze()
    control.sendall(line({"type": "hosting", "sandbox": how}))
    serve(control, on_lines(partial(play, environment=environment, job=job)))


def play(stream: IO[bytes], environment: ForeignEnvironment, job: Job) -> None:
    """Play one episode after the other until the worker hangs up."""
    stream.write(line({"type": "born", "pid": os.getpid()}))
    stream.flush()
    table = PlayedEpisode(environment, job)
    for text in stream:
        order = json.loads(text)
        try:
            written = line(table.answer(order))
        except MemoryError:
            written = line(broke(TooLarge(f"memory: more than {job.memory // 2**20} MiB of address space")))
        except BaseException as error:  # foreign code: whatever it raises is the episode's failure
            written = line(broke(error))
        stream.write(written)
        stream.flush()


class PlayedEpisode:
    """The episode that a process plays now."""

    def __init__(self, environment: ForeignEnvironment, job: Job) -> None:
        self._environment = environment
        self._job = job
        self._episode: ForeignEpisode | None = None
        self._turns: Counter[str] = Counter()
        self._cut = False

    def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an order. Raises whatever the environment raises."""
        match order["type"]:
            case "begin":
                return self._begin(order)
            case "replies":
                return self._move(order["replies"])
            case "tally":
                return self._tally()
        self._close()
        return {"type": "closed"}

    def _begin(self, order: Mapping[str, Any]) -> dict[str, Any]:
        self._close()
        seed_everything(order["seed"])
        self._turns.clear()
        self._cut = False
        episode = self._environment.begin(order["task_seed"], order["held_out"], order["seed"])
        self._episode = episode
        return self._progress(episode, episode.describe())

    def _move(self, replies: list[dict[str, Any]]) -> dict[str, Any]:
        episode = self._playing()
        self._turns.update(reply["role"] for reply in replies)
        episode.act([_heard(reply) for reply in replies])
        return self._progress(episode, {})

    def _progress(self, episode: ForeignEpisode, task: dict[str, object]) -> dict[str, Any]:
        asks: list[SeatAsk] = episode.asks()
        unknown = {ask.role for ask in asks} - set(self._job.roles)
        if unknown:
            raise ValueError(f"it asks {', '.join(sorted(unknown))}; its roles are {', '.join(self._job.roles)}")
        if any(self._turns[ask.role] >= self._job.turns for ask in asks):
            asks, self._cut = [], True
        written = [{**ask, "max_tokens": self._job.reply_tokens} for ask in asks_of(asks)]
        return {"type": "progress", "asks": written, "task": task}

    def _tally(self) -> dict[str, Any]:
        score = score_of(self._playing().result())
        score["facts"]["cut_off"] = float(self._cut)
        absent = dict.fromkeys(self._job.roles, 0.0)
        return {"type": "progress", "asks": [], "score": {**score, "scores": absent | score["scores"]}}

    def _close(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            episode.close()

    def _playing(self) -> ForeignEpisode:
        if self._episode is None:
            raise RuntimeError("no episode was begun")
        return self._episode


def _heard(reply: Mapping[str, Any]) -> SeatReply:
    calls = (reply.get("message") or {}).get("tool_calls", ())
    return SeatReply(reply["role"], reply["text"], tuple(calls))


def seed_everything(seed: int) -> None:
    """Seed every generator that the process has: packages draw from them and say so nowhere."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % _SEEDS)
