"""Episodes that take their turns together: none is asked before all that play beside it have come as far.

Who plays beside whom is what one rollout command plays at the moment, as in a real rollout worker. Invariant: whoever
waits goes on as soon as nobody is left to come, however those went that did not come.
"""

from collections.abc import Callable, Hashable

from flexmarl.simulator.devices.clock import Clock


class RoundBarrier:
    """The episodes of one command."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._playing: set[Hashable] = set()
        self._come: dict[Hashable, Callable[[], None]] = {}

    def enter(self, who: Hashable) -> None:
        """Count an episode among those that are waited for."""
        self._playing.add(who)

    def leave(self, who: Hashable) -> None:
        """Wait for it no more."""
        self._playing.discard(who)
        self._come.pop(who, None)
        self._clock.after(0.0, self._look)

    def turn(self, who: Hashable, go: Callable[[], None]) -> None:
        """Let an episode go on once all have come; those that begin at this moment are waited for."""
        self._come[who] = go
        self._clock.after(0.0, self._look)

    def _look(self) -> None:
        if self._come and len(self._come) == len(self._playing):
            come, self._come = self._come, {}
            for go in come.values():
                go()
