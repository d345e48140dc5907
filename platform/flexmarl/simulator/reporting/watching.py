"""A run as it looks from outside: what its core was told and decided, which turns were asked, which episodes began.

Invariant: nothing is taken from the counters of the core or of the models.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from flexmarl.contracts import events as e
from flexmarl.contracts.decisions import NumberedCommand
from flexmarl.contracts.rulings import Ruling
from flexmarl.contracts.wire import EpisodeOutcome
from flexmarl.orchestrator.types import Decision
from flexmarl.simulator.cluster.cluster import Cluster
from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.rollout.episodes import EpisodePlaying
from flexmarl.simulator.rollout.groups import Episode


@dataclass(slots=True)
class RunWatch:
    """A run with all that was told to its core, all that it decided, and all turns that were asked."""

    cluster: Cluster
    facts: list[tuple[float, e.Event]] = field(default_factory=list)
    commands: dict[int, NumberedCommand] = field(default_factory=dict)
    decided: dict[int, float] = field(default_factory=dict)
    """Command -> when it was decided."""
    void: dict[int, float] = field(default_factory=dict)
    """Command -> when it was made void."""
    rulings: list[Ruling] = field(default_factory=list)
    """What it decided that is no command: above all what is not trained, and why."""
    turns: dict[int, SimulatedTurn] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    """Every attempt that began."""

    @classmethod
    def over(cls, cluster: Cluster) -> "RunWatch":
        """Watch a run from now on."""
        watch = cls(cluster)
        cluster.driver.heard = watch._heard
        cluster.playing.engines.asked_for = watch._asked
        cluster.playing.begun = watch.episodes.append
        return watch

    def _heard(self, now: float, fact: e.Event, decision: Decision) -> None:
        self.facts.append((now, fact))
        self.commands.update((numbered.no, numbered) for numbered in decision.commands)
        self.decided.update((numbered.no, now) for numbered in decision.commands)
        self.void.update((no, now) for no in decision.void)
        self.rulings += decision.rulings

    def _asked(self, turn: SimulatedTurn) -> None:
        self.turns[id(turn)] = turn

    @property
    def whole(self) -> bool:
        """Tell whether episodes are played as a whole: no turn of theirs is asked by itself then."""
        return isinstance(self.cluster.playing, EpisodePlaying)

    def whole_episodes(self) -> list[Episode]:
        """List the episodes that are played as a whole."""
        return self.episodes if self.whole else []

    def made_whole(self) -> float:
        """Return the tokens that these have."""
        playing = self.cluster.playing
        return sum(playing.made_of(one) for one in self.episodes) if isinstance(playing, EpisodePlaying) else 0.0

    def settled(self) -> Iterator[tuple[float, e.GroupSettled, EpisodeOutcome]]:
        """List the outcomes that were told."""
        for now, fact in self.facts:
            if isinstance(fact, e.GroupSettled):
                for outcome in fact.episodes:
                    yield now, fact, outcome
