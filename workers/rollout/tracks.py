"""Where an episode begins and what is kept of it on its way, in groups whose members continue others.

Invariants: a copy is made before a round of turns is asked for, so whoever goes on from it is asked the same again; no
copy feels what the episode, or another that goes on from it, goes through later. What happens by chance inside an
environment goes on from the generator as it was there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from flexmarl.contracts.wire import Branch, Prefix
from workers.rollout.live_episode import LiveEpisode
from workers.rollout.speech import Speech
from workers.rollout.stages import Here
from workers.rollout.turns import TurnReply


@dataclass(frozen=True, slots=True)
class KeptEpisode:
    """An episode as it was after some of its turns."""

    turns: int
    live: Here
    speech: Speech


@dataclass(slots=True)
class Track:
    """The way of one member's attempts."""

    start: KeptEpisode | None = None
    """Where they begin; None: with nothing said."""
    branch: Branch | None = None
    """What they continue, and why."""
    keeps: bool = False
    """Copies are kept, for others to go on from."""
    kept: list[KeptEpisode] = field(default_factory=list)
    """Those of the last attempt, after one turn or more."""

    def keep(self, live: LiveEpisode, speech: Speech, turns: int) -> None:
        """Keep a copy of an episode after so many turns, if it is the first after these."""
        if self.keeps and turns > (self.kept[-1].turns if self.kept else 0) and isinstance(live, Here):
            self.kept.append(KeptEpisode(turns, live.copied(), speech.copied()))

    def told(self, replies: Sequence[TurnReply]) -> Branch | None:
        """Return what is recorded of a finished attempt with these replies."""
        if not self.keeps:
            return self.branch
        starts = [0, *(one.turns for one in self.kept)]
        return Branch(
            prefixes=tuple(
                Prefix(turns=end, logprob=mean_logprob(replies[begin:end])) for begin, end in pairwise(starts)
            )
        )


def mean_logprob(replies: Sequence[TurnReply]) -> float:
    """Return the mean log-probability of the tokens of replies; 0 where there are none."""
    said = [one for reply in replies for one in reply.choice.logprobs]
    return sum(said) / len(said) if said else 0.0
