"""What of a run is at no engine: turns whose weights none holds, and those of rollout commands that are held.

Invariants: a turn that is kept here has the tokens it has and is asked again once, when an engine holds its weights, or
when its command goes on. Which commands are held outlives whoever plays them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from flexmarl.contracts import commands as c
from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.rollout.groups import EpisodeTurn, SimulatedGroup


class StarvedTurns:
    """Turns whose weights no engine holds."""

    def __init__(self) -> None:
        self._turns: dict[str, list[SimulatedTurn]] = {}

    def add(self, turn: SimulatedTurn) -> None:
        """Keep a turn."""
        self._turns.setdefault(turn.policy, []).append(turn)

    def pop(self, policy: str) -> list[SimulatedTurn]:
        """Return the turns of a policy that are still to be asked; they are others' to keep."""
        return [turn for turn in self._turns.pop(policy, ()) if turn.phase == "asked"]

    def turns(self) -> list[SimulatedTurn]:
        """List those of all policies."""
        return [turn for turns in self._turns.values() for turn in turns if turn.phase == "asked"]

    def counts(self) -> Counter[str]:
        """Count those of each policy."""
        return Counter(turn.policy for turn in self.turns())


class HeldTurns:
    """`again`: asks a turn that goes on; `played`: command -> groups that are played of it, kept by another."""

    def __init__(self, again: Callable[[SimulatedTurn], None], played: Mapping[int, Sequence[SimulatedGroup]]) -> None:
        self._again, self._played = again, played
        self._turns: dict[int, list[SimulatedTurn]] = {}
        """Command that is held -> its turns that were to be asked."""

    def keeps(self, turn: SimulatedTurn) -> bool:
        """Take a turn that is to be asked, if its command is held."""
        own = self._turns.get(turn.episode.group.no) if isinstance(turn, EpisodeTurn) else None
        if own is None:
            return False
        own.append(turn)
        return True

    def take(self, command: c.HoldGroups) -> None:
        """Let commands stand still, or go on."""
        for no in command.commands:
            if not command.hold:
                for turn in self._turns.pop(no, ()):
                    if turn.phase == "asked":
                        self._again(turn)
            elif no not in self._turns:
                self._turns[no] = [turn for turn in _at_engines(self._played.get(no, ())) if _taken_back(turn)]


def _at_engines(groups: Iterable[SimulatedGroup]) -> Iterator[SimulatedTurn]:
    for group in groups:
        for episode in group.playing:
            yield from [turn for turn in episode.asked.values() if turn.engine is not None]


def _taken_back(turn: SimulatedTurn) -> bool:
    assert turn.engine is not None
    turn.engine.drop(turn)
    if turn.follow == "restart_turn":
        turn.made, turn.segments = 0.0, ()
    return True
