"""The host of a run's isolated environments: `python -m workers.adopted workers.rollout.isolation.host FD SPEC`.

It prepares the game once, which imports it, and forks a process for each episode that plays at the same time, which
costs milliseconds. It plays nothing itself, so nothing can hang it. Invariants: one thread, so that forking is safe; a
process is killed only while it is this host's child and not yet reaped, so its number cannot be another's; whatever
ends the host ends all its children (Linux), and the end of its socket ends the host.
"""

import ctypes
import gc
import os
import random
import select
import signal
import socket
import sys
from typing import IO, Any, NoReturn, cast

import msgspec
import numpy as np
from pydantic import TypeAdapter

from flexmarl.contracts.specification.environment import EnvironmentSpec
from workers.rollout.environments import Environment, Family, family_of
from workers.rollout.isolation.lines import (
    FORK,
    FRAME,
    Begin,
    Born,
    Broke,
    EpisodeProgress,
    HostReady,
    Order,
    line,
    score_of,
)

_PR_SET_PDEATHSIG = 1
REAP_EVERY_S = 1.0
_SEEDS = 2**32
"""Seeds that numpy's old generator takes."""


def main() -> None:
    """Serve orders until the worker hangs up."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # The worker decides when it ends, by hanging up, also when a terminal interrupts both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        family = family_of(TypeAdapter(EnvironmentSpec).validate_json(sys.argv[2]))
        family.prepare()
    except Exception as error:  # foreign code: whatever preparing it raises is the reason of every episode
        control.sendall(line(Broke(f"{type(error).__name__}: {error}")))
        sys.exit(1)
    # What is imported stays shared with the children instead of being copied by their first collection.
    gc.freeze()
    control.sendall(line(HostReady()))
    serve(control, family)


def serve(control: socket.socket, family: Family[Any]) -> None:
    """Fork and kill as ordered."""
    children: set[int] = set()
    while True:
        waiting, _, _ = select.select([control], [], [], REAP_EVERY_S)
        # Children are reaped here alone: between two looks their numbers stay theirs, also when they have ended.
        children -= {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]}
        if not waiting:
            continue
        order, given, _, _ = socket.recv_fds(control, FRAME, 1, socket.MSG_WAITALL)
        if len(order) < FRAME:
            _end(children)
        if order[:1] == FORK:
            children.add(_fork(control, given[0], family))
        elif (pid := int.from_bytes(order[1:], "big")) in children:
            os.kill(pid, signal.SIGKILL)


def _end(children: set[int]) -> NoReturn:
    """End every child, wait for its end, and end. A child that is left to nobody stays a zombie where nobody reaps."""
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)
    os._exit(0)


def _fork(control: socket.socket, given: int, family: Family[Any]) -> int:
    host = os.getpid()
    pid = os.fork()
    if pid:
        os.close(given)
        return pid
    status = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        control.close()
        with socket.socket(fileno=given) as link, link.makefile("rwb") as stream:
            if os.getppid() == host:
                play(cast("IO[bytes]", stream), family)
        status = 0
    finally:
        # Never back into the host's loop, and none of its clean-up.
        os._exit(status)


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
                random.seed(order.seed)
                np.random.seed(order.seed % _SEEDS)
                environment = family.make(order.task_seed, order.held_out, random.Random(order.seed))
                answer: EpisodeProgress | Broke = progress(environment, environment.describe())
            else:
                assert environment is not None
                environment.act(order.replies)
                answer = progress(environment, {})
        except Exception as error:  # foreign code: whatever it raises is the episode's failure
            answer = Broke(f"{type(error).__name__}: {error}")
        stream.write(line(answer))
        stream.flush()


def progress(environment: Environment, task: dict[str, object]) -> EpisodeProgress:
    """Say where an episode stands."""
    asks = environment.asks()
    return EpisodeProgress(asks, None if asks else score_of(environment.outcome()), task)


if __name__ == "__main__":
    main()
