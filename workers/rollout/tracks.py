"""Where an episode begins and what is kept of it on its way, in groups whose members continue others.

Invariants: a copy is made before a round of turns is asked for, so whoever goes on from it is asked the same again; no
copy feels what the episode, or another that goes on from it, goes through later. What happens by chance inside an
environment goes on from the generator as it was there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from flexmarl.algorithms.token_branching import signals_of, spread
from flexmarl.contracts.wire import Branch, Prefix
from workers.rollout.engines.wire import Done
from workers.rollout.environments.base import Ask
from workers.rollout.live_episode import LiveEpisode
from workers.rollout.speech import Speech
from workers.rollout.stages import Here
from workers.rollout.turns import TurnReply, TurnRequest

if TYPE_CHECKING:
    from flexmarl.algorithms.token_branching import Signals


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
    likeliest: int = 0
    """Of how many tokens the mass tells how uncertain a token was, where others go on within replies; 0: they go on
    after turns."""
    opening: Done | None = None
    """What the first reply begins with."""
    kept: list[KeptEpisode] = field(default_factory=list)
    """Those of the last attempt, after one turn or more; where others go on within replies, also before the first."""

    def keep(self, live: LiveEpisode, speech: Speech, turns: int) -> None:
        """Keep a copy of an episode after so many turns, if it is the first after these."""
        last = self.kept[-1].turns if self.kept else -1 if self.likeliest else 0
        if self.keeps and turns > last and isinstance(live, Here):
            self.kept.append(KeptEpisode(turns, live.copied(), speech.copied()))

    def opened(self, asks: Sequence[Ask], requests: Sequence[TurnRequest], turns: int) -> list[TurnRequest]:
        """Return what is asked after so many turns of its own, the first reply begun where it goes on within one."""
        found = list(requests)
        if self.opening is not None and not turns:
            for place in [place for place, ask in enumerate(asks) if not ask.aside][:1]:
                found[place] = replace(found[place], begun=self.opening)
        return found

    def told(self, replies: Sequence[TurnReply]) -> Branch | None:
        """Return what is recorded of a finished attempt with these replies."""
        if not self.keeps:
            return self.branch
        if self.likeliest:
            told = [signals_of_reply(reply, self.likeliest) for reply in replies]
            return Branch(signals=spread(np.concatenate(told)) if told else ())
        starts = [0, *(one.turns for one in self.kept)]
        return Branch(
            prefixes=tuple(
                Prefix(turns=end, logprob=mean_logprob(replies[begin:end])) for begin, end in pairwise(starts)
            )
        )


def signals_of_reply(reply: TurnReply, likeliest: int) -> "Signals":
    """Return how uncertain the tokens of a reply were; nothing where its engine did not tell."""
    return signals_of(reply.choice.uncertainty, likeliest)


def mean_logprob(replies: Sequence[TurnReply]) -> float:
    """Return the mean log-probability of the tokens of replies; 0 where there are none."""
    said = [one for reply in replies for one in reply.choice.logprobs]
    return sum(said) / len(said) if said else 0.0
