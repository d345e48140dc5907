"""What stands still of a run's episodes: the turns of rollout commands that are held, until these go on.

Invariant: a turn of a held command is at no engine; it keeps the tokens it has and is asked again when its command goes
on, once. Which commands are held outlives whoever plays them.
"""

from collections.abc import Callable, Iterable, Iterator

from flexmarl.contracts import commands as c
from flexmarl.simulator.devices.turns import Turn
from flexmarl.simulator.rollout.groups import EpisodeTurn, Group


class Held:
    """`again`: asks a turn that goes on."""

    def __init__(self, again: Callable[[Turn], None]) -> None:
        self._again = again
        self._turns: dict[int, list[Turn]] = {}
        """Command that is held -> its turns that were to be asked."""

    def keeps(self, turn: Turn) -> bool:
        """Take a turn that is to be asked, if its command is held."""
        own = self._turns.get(turn.episode.group.no) if isinstance(turn, EpisodeTurn) else None
        if own is None:
            return False
        own.append(turn)
        return True

    def take(self, command: c.HoldGroups, played: Callable[[int], Iterable[Group]]) -> None:
        """Let commands stand still, or go on; `played` lists the groups that are played of one."""
        for no in command.commands:
            if not command.hold:
                for turn in self._turns.pop(no, ()):
                    if turn.phase == "asked":
                        self._again(turn)
            elif no not in self._turns:
                self._turns[no] = [turn for turn in _at_engines(played(no)) if _taken_back(turn)]


def _at_engines(groups: Iterable[Group]) -> Iterator[Turn]:
    for group in groups:
        for episode in group.playing:
            yield from [turn for turn in episode.asked.values() if turn.engine is not None]


def _taken_back(turn: Turn) -> bool:
    assert turn.engine is not None
    turn.engine.drop(turn)
    if turn.follow == "restart_turn":
        turn.made, turn.segments = 0.0, ()
    return True
