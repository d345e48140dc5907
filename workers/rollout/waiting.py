"""How long an environment takes to answer, where its specification declares that instead of leaving it to the game.

Invariant: what an episode waits is drawn from a generator of its attempt alone, so neighbours change nothing of it.
"""

import math
import random

from flexmarl.contracts.specification.environment_base import Latency


class AttemptWaits:
    """The waits of one attempt, in the order of its answers."""

    def __init__(self, latency: Latency, rng: random.Random) -> None:
        self._latency = latency
        self._rng = rng
        # Only a mixture draws: other specifications keep the waits that they had before there were any.
        slow = latency.slow_share > 0.0 and rng.random() < latency.slow_share
        self._extra_s = latency.slow_s if slow else 0.0

    def next_s(self) -> float:
        """Return the next wait; the first one of a slow attempt is longer."""
        latency, gauss = self._latency, self._rng.gauss(0.0, 1.0)
        if latency.shape == "normal":
            usual = max(0.0, latency.scale_s + latency.sigma * gauss)
        else:
            usual = latency.scale_s * math.exp(latency.sigma * gauss)
        extra_s, self._extra_s = self._extra_s, 0.0
        return min(latency.cap_s, usual) + extra_s
