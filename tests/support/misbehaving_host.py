"""A host of isolated environments whose game does what its task seed says. Started like the real one."""

import os
import random
import signal
import time
from collections.abc import Mapping

from flexmarl.algorithms.registry import Registry
from flexmarl.contracts.specification.environment import ENVIRONMENT, PettingZoo
from workers.rollout.environments import registry
from workers.rollout.environments.games import GameFamily
from workers.rollout.isolation import host

WELL, HANGS_AT_SET_UP, HANGS, HANGS_DEAF, RAISES, DIES, DRAWS = range(7)
MOVES = 3


class Misbehaving(GameFamily[PettingZoo]):
    Options = PettingZoo

    def begin(self, task_seed: int) -> "Game":
        if task_seed == HANGS_AT_SET_UP:
            time.sleep(3600)
        return Game(task_seed, self.table.game.seats[0].name)


class Game:
    def __init__(self, what: int, seat: str) -> None:
        self.what, self.seat, self.moves = what, seat, 0

    def acting(self) -> tuple[str, ...]:
        return (self.seat,) if self.moves < MOVES else ()

    def observation(self, seat: str) -> str:
        return str(random.getrandbits(60)) if self.what == DRAWS else f"pid {os.getpid()}"

    def legal(self, seat: str) -> tuple[str, ...]:
        return ("go",)

    def act(self, moves: Mapping[str, str]) -> Mapping[str, float]:
        self.moves += 1
        if self.what == HANGS_DEAF:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if self.what in (HANGS, HANGS_DEAF):
            time.sleep(3600)
        if self.what == RAISES:
            raise RuntimeError("the board caught fire")
        if self.what == DIES:
            os._exit(7)
        return {self.seat: 1.0}


if __name__ == "__main__":
    registry.FAMILIES = Registry(ENVIRONMENT, [Misbehaving])
    host.main()
