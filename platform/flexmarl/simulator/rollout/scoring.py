"""A model of what gives episodes their rewards: each takes its time, so many at once, first come first served.

With a barrier, nobody is scored while an episode plays: a stage that waits for all of the one before.
"""

from collections import deque
from collections.abc import Callable

from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.rollout.groups import Episode
from flexmarl.simulator.scenarios.scenario import Workload

Done = Callable[[Episode], None]


class Scoring:
    def __init__(self, clock: Clock, workload: Workload) -> None:
        self._clock, self._token_s, self._barrier = clock, workload.reward_token, workload.scored_last
        self._free = workload.scorers
        self._playing: set[int] = set()
        """Episodes that are not over; noted only where somebody waits for them."""
        self._queue: deque[tuple[float, Done, Episode]] = deque()

    def begun(self, episode: object) -> None:
        """An episode plays."""
        if self._barrier:
            self._playing.add(id(episode))

    def over(self, episode: object) -> None:
        """An episode plays no more."""
        if self._barrier:
            self._playing.discard(id(episode))
            self._next()

    def score(self, when: float, done: Done, episode: Episode) -> None:
        """Call `done(episode)` once somebody has worked on it, which is over since `when`."""
        seconds = episode.script.reward_s
        if self._token_s:
            seconds += self._token_s * episode.answered()
        if self._free is None and not self._barrier:
            self._clock.at(when + seconds, done, episode)
            return
        self._queue.append((seconds, done, episode))
        self._playing.discard(id(episode))
        self._next()

    def _next(self) -> None:
        while self._queue and not self._playing and self._free != 0:
            seconds, done, episode = self._queue.popleft()
            if self._free is not None:
                self._free -= 1
            self._clock.after(seconds, self._done, done, episode)

    def _done(self, done: Done, episode: Episode) -> None:
        if self._free is not None:
            self._free += 1
            self._next()
        done(episode)
