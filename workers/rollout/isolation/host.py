"""The host of a run's isolated environments: `python -m workers.adopted workers.rollout.isolation.host SPEC FD`.

It prepares the game once, which imports it, and forks a process for each episode that plays at the same time, which
costs milliseconds (`workers.packages.inside.hosting`). It plays nothing itself, so nothing can hang it.
"""

import gc
import os
import random
import signal
import socket
import sys
from functools import partial
from typing import IO, Any

import msgspec
import numpy as np
from pydantic import TypeAdapter

from flexmarl.contracts.specification.environment import EnvironmentSpec
from workers.packages.inside.hosting import on_lines, serve
from workers.rollout.environments.base import Environment, Family
from workers.rollout.environments.registry import family_of
from workers.rollout.isolation.lines import (
    Answer,
    Begin,
    Born,
    Broke,
    Close,
    Closed,
    EpisodeProgress,
    HostReady,
    Order,
    ScoreOrder,
    line,
    score_of,
)

_SEEDS = 2**32
"""Seeds that numpy's old generator takes."""


def main() -> None:
    """Serve orders until the worker hangs up."""
    control = socket.socket(fileno=int(sys.argv[2]))
    # The worker decides when it ends, by hanging up, also when a terminal interrupts both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        family = family_of(TypeAdapter(EnvironmentSpec).validate_json(sys.argv[1]))
        family.prepare()
    except Exception as error:  # foreign code: whatever preparing it raises is the reason of every episode
        control.sendall(line(Broke(f"{type(error).__name__}: {error}")))
        sys.exit(1)
    # What is imported stays shared with the children instead of being copied by their first collection.
    gc.freeze()
    control.sendall(line(HostReady()))
    serve(control, on_lines(partial(play, family=family)))


def play(stream: IO[bytes], family: Family[Any]) -> None:
    """Play one episode after the other until the worker hangs up."""
    environment: Environment | None = None
    decoder = msgspec.json.Decoder(Order)
    stream.write(line(Born(os.getpid())))
    stream.flush()
    for text in stream:
        order = decoder.decode(text)
        try:
            if isinstance(order, Begin):
                environment = begun(order, family)
                answer: Answer = EpisodeProgress(environment.asks(), None, environment.describe())
            else:
                assert environment is not None
                answer = carried_out(order, environment)
        except Exception as error:  # foreign code: whatever it raises is the episode's failure
            answer = Broke(f"{type(error).__name__}: {error}")
        stream.write(line(answer))
        stream.flush()


def begun(order: Begin, family: Family[Any]) -> Environment:
    """Make an episode, with every generator of the process seeded."""
    random.seed(order.seed)
    np.random.seed(order.seed % _SEEDS)
    return family.make(order.task_seed, order.held_out, random.Random(order.seed))


def carried_out(order: Order, environment: Environment) -> Answer:
    """Carry out an order to an episode. Raises whatever the environment raises."""
    if isinstance(order, ScoreOrder):
        return EpisodeProgress([], score_of(environment.outcome()))
    if isinstance(order, Close):
        if (close := getattr(environment, "close", None)) is not None:
            close()
        return Closed()
    assert not isinstance(order, Begin)
    environment.act(order.replies)
    return EpisodeProgress(environment.asks())


if __name__ == "__main__":
    main()
