"""How much is asked of a simulated run's engines, told as often as real engines and rollout workers tell it.

Off unless asked for: `Loads.over` looks at a cluster from outside. Invariants: nothing decides by what is kept here and
looking changes nothing but the number of events; a sample is of one moment, as a real report is; it ends with the run.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from flexmarl.contracts.events import RequestedTurns
from flexmarl.simulator.cluster.cluster import Cluster
from flexmarl.simulator.rollout.episodes import EpisodePlaying

EVERY_S = 2.0
"""Seconds from one report to the next, as of real engines."""


class EngineSample(NamedTuple):
    """What an engine would tell of itself."""

    at: float
    lease_id: int
    running: int
    waiting: int
    slots: int
    cache_use: float | None
    """Share of the places of its cache that are taken; None where there is no end of them."""


class RequestedSample(NamedTuple):
    """Turns that rollout workers requested of a policy, at one moment."""

    at: float
    policy: str
    asked: RequestedTurns


@dataclass(slots=True)
class Loads:
    cluster: Cluster
    engines: list[EngineSample] = field(default_factory=list)
    asked: list[RequestedSample] = field(default_factory=list)

    @classmethod
    def over(cls, cluster: Cluster) -> "Loads":
        """Sample a run from now on. Raises ValueError for whole episodes, whose turns have no queue of their own."""
        if isinstance(cluster.playing, EpisodePlaying):
            raise ValueError("engines have queues where turns are events: set granularity to turn")
        loads = cls(cluster)
        cluster.clock.after(EVERY_S, loads._look)
        return loads

    def _look(self) -> None:
        cluster = self.cluster
        if cluster.driver.ended:
            return
        now = cluster.clock.now
        for lease_id, one in cluster.playing.engines.items():
            self.engines.append(EngineSample(now, lease_id, one.running, one.waiting, one.slots, one.cache_use()))
        for policy, asked in cluster.playing.demand().items():
            self.asked.append(RequestedSample(now, policy, asked))
        cluster.clock.after(EVERY_S, self._look)
