"""Groups and episodes that are played, and the places that they take."""

from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from flexmarl.contracts import commands as c
from flexmarl.contracts.wire import EpisodeOutcome
from flexmarl.simulator import chance
from flexmarl.simulator.draws import Script, Sheet
from flexmarl.simulator.together import Together
from flexmarl.simulator.turns import Turn

EpisodeKey = tuple[int, int, int, bool]
"""(draw, member, attempt, whether it plays beside a first one)"""


@dataclass(slots=True, eq=False)
class Episode:
    """One attempt at a member of a group."""

    group: "Group"
    member: int
    attempt: int
    twin: bool
    """It plays beside a first one."""
    script: Script | Sheet
    began: float
    held: deque[Turn] = field(default_factory=deque)
    """Turns of this stage behind those that may be asked at once."""
    asked: dict[str, Turn] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """What its samples are made of."""
    tokens: float = 0.0
    """Reply tokens that it had when it was abandoned, where it was played as a whole."""
    stage: int = 0
    """Stages asked so far."""
    played: bool = False
    """Its environment is done; it waits for its reward."""
    over: bool = False

    @property
    def key(self) -> EpisodeKey:
        """Return what it is an attempt at."""
        return self.group.order.draw, self.member, self.attempt, self.twin

    def made(self) -> float:
        """Count the reply tokens that it has; of a reply that an engine is at, those of its last look."""
        told = sum(row["tokens"] for row in self.rows)
        return self.tokens + told + sum(turn.made for turn in self.asked.values())


@dataclass(slots=True, eq=False, kw_only=True)
class EpisodeTurn(Turn):
    episode: Episode
    number: int

    @property
    def task(self) -> str:
        """Return what replies share that are the most alike."""
        return f"{self.episode.group.order.draw}.{self.role}"

    @property
    def key(self) -> int:
        """Return what chances of its own are drawn by."""
        return chance.mixed(self.episode.script.key, self.number)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Return whose turns begin with the same tokens, by the names that real workers give them."""
        group = self.episode.group
        if self.role not in group.shares:
            return ()
        draw = group.order.draw
        return f"{draw}.{self.episode.member}.{self.role}", f"{draw}.{self.role}"

    def shared(self, computed: Container[str]) -> float:
        """Return the share of its prompt that was computed for others before."""
        names, group = self.prefixes, self.episode.group
        if not names:
            return 0.0
        again, alike = group.shares[self.role]
        if self.number > 0 and names[0] in computed:
            return again
        return alike if self.number == 0 and names[1] in computed else 0.0


@dataclass(slots=True, eq=False)
class Group:
    no: int
    command: c.PlayGroups
    order: c.GroupOrder
    began: float
    shares: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Role -> shares of its prompts that its turn before, and the group's other members, had too."""
    playing: list[Episode] = field(default_factory=list)
    outcomes: dict[int, EpisodeOutcome] = field(default_factory=dict)
    finished: int = 0
    waiting: deque[int] = field(default_factory=deque)
    """Members that have no place yet."""
    together: Together | None = None
    """Where its episodes wait for the others of their command before each turn."""
    over: bool = False


class Places:
    """Episodes of the run that play at once; whoever finds no place gets the next one in its turn."""

    def __init__(self, limit: int | None) -> None:
        self._free = limit
        self._queue: deque[Callable[[], bool]] = deque()

    def enter(self, begin: Callable[[], bool]) -> None:
        """Begin at once or as soon as there is a place. `begin` returns False when it needs none any more."""
        if self._free is None:
            begin()
        elif self._free > 0:
            self._free -= begin()
        else:
            self._queue.append(begin)

    def leave(self) -> None:
        """Give a place to whoever waits longest and still wants one."""
        if self._free is None:
            return
        self._free += 1
        while self._queue and self._free > 0:
            self._free -= self._queue.popleft()()
