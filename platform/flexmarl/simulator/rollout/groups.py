"""Groups and episodes that are played, and the places that they take."""

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from flexmarl.contracts import commands as c
from flexmarl.contracts.specification.mechanisms import Parallel
from flexmarl.contracts.wire import TOO_OLD, EpisodeOutcome, EpisodeStatus, SampleRef
from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.rollout import facts
from flexmarl.simulator.rollout.round_barrier import RoundBarrier
from flexmarl.simulator.scenarios import chance
from flexmarl.simulator.scenarios.draws import Script, Sheet
from flexmarl.simulator.scenarios.scenario import Scenario

EpisodeKey = tuple[int, int, int, bool]
"""(draw, member, attempt, whether it plays beside a first one)"""


class Episode(msgspec.Struct, eq=False):
    """One attempt at a member of a group."""

    group: "SimulatedGroup"
    member: int
    attempt: int
    twin: bool
    """It plays beside a first one."""
    script: Script | Sheet
    began: float
    held: list[SimulatedTurn] = []
    """Turns of this stage behind those that may be asked at once."""
    asked: dict[str, SimulatedTurn] = {}
    rows: list[SampleRef] = []
    """Its samples so far."""
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

    def answered(self) -> int:
        """Count the tokens of its replies that are complete."""
        return sum(row.tokens for row in self.rows)

    def made(self) -> float:
        """Count the reply tokens that it has; of a reply that an engine is at, those of its last look."""
        return self.tokens + self.answered() + sum(turn.made for turn in self.asked.values())

    def prefixes(self, role: str) -> tuple[str, ...]:
        """Return whose turns begin like those of a role here, by the names that real workers give them."""
        if role not in self.group.shares:
            return ()
        draw = self.group.order.draw
        return f"{draw}.{self.member}.{role}", f"{draw}.{role}"


class EpisodeTurn(SimulatedTurn, eq=False, kw_only=True):
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
class SimulatedGroup:
    no: int
    command: c.PlayGroups
    order: c.GroupOrder
    began: float
    seats: Mapping[str, "RoleSettings"] = field(default_factory=dict)
    """Of each role, how it is asked."""
    shares: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Role -> shares of its prompts that its turn before, and the group's other members, had too."""
    playing: list[Episode] = field(default_factory=list)
    outcomes: dict[int, EpisodeOutcome] = field(default_factory=dict)
    finished: int = 0
    waiting: deque[int] = field(default_factory=deque)
    """Members that have no place yet."""
    together: RoundBarrier | None = None
    """Where its episodes wait for the others of their command before each turn."""
    over: bool = False


class RoleSettings(NamedTuple):
    """How a role is asked by the groups of one command."""

    policy: str
    pinned: int
    follow: str
    scale: float


Begin = Callable[[SimulatedGroup, int], bool]


class Team(NamedTuple):
    """How the roles of a team are asked."""

    scenario: Scenario
    policies: dict[str, str]
    """Of each role."""
    scales: dict[str, float]
    """Policy -> how many times as long its turns take."""
    widths: tuple[int, ...]
    """Turns of each stage of a round."""
    at_once: int | None
    """Turns of a stage that may be asked beside each other; None: all."""
    shares: dict[str, tuple[float, float]]
    """What prompts of a role have in common, of roles that have anything."""
    trained: frozenset[str]
    """Roles whose rows are trained."""
    bounds: dict[str, int]
    """Of each trained policy, where episodes are given up that are too old for all of them; else empty."""

    def seats(self, command: c.PlayGroups) -> dict[str, RoleSettings]:
        """Return how roles are asked by the groups of a command."""
        pins, follows, scales = command.pins, command.follows, self.scales
        return {
            role: RoleSettings(policy, pins[policy].version, follows.get(policy, ""), scales[policy])
            for role, policy in self.policies.items()
            if policy in pins
        }

    @classmethod
    def of(cls, scenario: Scenario) -> "Team":
        """Return that of a scenario."""
        spec, workload = scenario.spec, scenario.workload
        policies = {role: spec.policy_of(role) for role in spec.agents}
        widths = tuple(len(stage) for stage in workload.stages)
        scales = {policy: scenario.machine.answers(policy) for policy in policies.values()}
        trained = frozenset(role for role, agent in spec.agents.items() if agent.trainable)
        limit, shares, bounds = spec.mechanisms.parallel.agents, workload.shares(policies), spec.abandon_bounds()
        return cls(scenario, policies, scales, widths, limit, shares, trained, bounds)


class EpisodeSlots:
    """Episodes of the run that play at once; whoever finds no place gets the next one in its turn."""

    def __init__(self, limit: int | None) -> None:
        self._free = limit
        self._queue: deque[tuple[Begin, SimulatedGroup, int]] = deque()

    def enter(self, begin: Begin, group: SimulatedGroup, member: int) -> None:
        """Begin with a member at once or when there is a place. `begin` returns False when it needs none any more."""
        if self._free is None:
            begin(group, member)
        elif self._free > 0:
            self._free -= begin(group, member)
        else:
            self._queue.append((begin, group, member))

    def leave(self) -> None:
        """Give a place to whoever waits longest and still wants one."""
        if self._free is None:
            return
        self._free += 1
        while self._queue and self._free > 0:
            begin, group, member = self._queue.popleft()
            self._free -= begin(group, member)


def idle_places(groups: Iterable[SimulatedGroup], limits: Parallel) -> int:
    """Count the members that could begin by all limits of episodes at once, and have not."""
    held = could = 0
    for group in groups:
        begun = {one.member for one in group.playing}
        held += sum(not (one.twin or one.played) for one in group.playing)
        left = 0 if group.over else group.order.members - len(group.outcomes.keys() | begun)
        could += left if limits.members is None else min(left, max(0, limits.members - len(begun)))
    return could if limits.episodes is None else max(0, min(could, limits.episodes - held))


def outcome_of(episode: Episode, why: str, policies: Iterable[str], now: float) -> EpisodeOutcome:
    """Tell how an episode ended; one that failed, for `why`, has no rows and scores nothing."""
    finished = not why
    score = episode.script.score if finished else 0.0
    return facts.outcome(
        episode.member, episode.attempt, why, episode.twin and finished, score, dict.fromkeys(policies, score),
        tuple(episode.rows) if finished else (), now - episode.began,
    )  # fmt: skip


def given_up(episode: Episode, why: str, now: float) -> EpisodeOutcome:
    """Tell that an episode was given up between two turns, for `why`, with the tokens of its replies."""
    return EpisodeOutcome(
        member=episode.member, attempt=episode.attempt, status=EpisodeStatus.CANCELLED, reason=f"{TOO_OLD} {why}",
        wasted=episode.answered(), duration_s=now - episode.began,
    )  # fmt: skip
