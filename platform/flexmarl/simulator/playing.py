"""A model of the rollout workers: groups are played member by member, turn by turn, until they settle.

Turns are routed by the router of real runs, over loads that are exact where a real worker's are some milliseconds old.
Invariants: every group of a command settles exactly once, or part by part where episodes settle alone, unless its
command is void; every member has one outcome.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flexmarl.algorithms.routing import ROUTERS, EngineLoad, RouteRequest
from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.spec import ExperimentSpec
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from flexmarl.simulator import chance
from flexmarl.simulator.clock import Clock
from flexmarl.simulator.engines import Engine, Turn
from flexmarl.simulator.scenario import Workload

_ROUNDS, _ENVIRONMENT, _REWARD, _FAILS, _SCORE, _TWIN, _SLOW = range(1, 8)
Told = Callable[[e.Event], None]
SampleId = tuple[int, int, int, str, int]
"""(draw, member, attempt, role, turn)"""


@dataclass(slots=True, eq=False)
class Episode:
    """One attempt at a member of a group."""

    group: "Group"
    member: int
    attempt: int
    key: int
    """Of all that happens in it by chance."""
    twin: bool
    """It plays beside a first one."""
    stages: deque[tuple[str, ...]]
    """Still to be asked."""
    asked: dict[str, Turn] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    """Role -> turns asked so far."""
    samples: list[SampleRef] = field(default_factory=list)
    began: float = 0.0
    stage: int = 0
    over: bool = False


@dataclass(slots=True, eq=False)
class Group:
    no: int
    command: c.PlayGroups
    order: c.GroupOrder
    began: float
    playing: list[Episode] = field(default_factory=list)
    outcomes: dict[int, EpisodeOutcome] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    """Members that have no place yet."""
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


class Playing:
    def __init__(self, clock: Clock, spec: ExperimentSpec, workload: Workload, seed: int, told: Told) -> None:
        self.engines: dict[int, Engine] = {}
        """By lease; those that are ready."""
        self.tokens: dict[SampleId, int] = {}
        """Reply tokens of every sample of a settled group, until they are forgotten."""
        self._clock, self._spec, self._workload, self._told = clock, spec, workload, told
        self._seed = chance.mixed(0, seed)
        self._router = ROUTERS.get(spec.mechanisms.router)()
        self._roles = {role: number for number, role in enumerate(sorted(spec.agents))}
        self._groups: dict[int, list[Group]] = {}
        self._starved: dict[str, list[Turn]] = {}
        """Policy -> turns whose weights no engine holds."""
        self._places = Places(spec.mechanisms.parallel.episodes)

    def play(self, no: int, command: c.PlayGroups) -> None:
        """Begin with the groups of a command."""
        self._groups[no] = groups = []
        for order in command.groups:
            group = Group(no, command, order, self._clock.now, waiting=deque(range(order.members)))
            groups.append(group)
        for group in groups:
            for _ in range(min(group.order.members, self._spec.mechanisms.parallel.members or group.order.members)):
                self._next_member(group)

    def withdraw(self, numbers: Iterable[int]) -> None:
        """Forget the groups of commands that are void."""
        for no in numbers:
            for group in self._groups.pop(no, ()):
                group.over = True
                for episode in list(group.playing):
                    self._abandon(episode)

    def weights(self, policy: str) -> None:
        """Ask again for turns whose weights an engine may hold now."""
        for turn in self._starved.pop(policy, ()):
            if turn.phase == "asked":
                self._route(turn)

    def hand_back(self, turn: Turn) -> None:
        """Let a turn go on at another engine."""
        if turn.engine is not None:
            turn.engine.drop(turn)
        self._route(turn)

    def demand(self) -> dict[str, e.TurnsAsked]:
        """Count the turns of each policy that no engine and that an engine has."""
        held: dict[str, int] = {}
        for engine in self.engines.values():
            for policy in engine.held.newest:
                held[policy] = held.get(policy, 0) + len(engine.asked_of(policy))
        starved = {name: sum(t.phase == "asked" for t in turns) for name, turns in self._starved.items()}
        names = {name for name in (*held, *starved) if held.get(name) or starved.get(name)}
        return {n: e.TurnsAsked(waiting=starved.get(n, 0), in_flight=held.get(n, 0)) for n in sorted(names)}

    def _next_member(self, group: Group) -> None:
        """Begin with a group's next member as soon as the run has a place for it."""
        if not group.waiting or group.over:
            return
        member = group.waiting.popleft()

        def begin() -> bool:
            if not group.over:
                self._begin(group, member, 1, twin=False)
            return not group.over

        self._places.enter(begin)

    def _begin(self, group: Group, member: int, attempt: int, twin: bool) -> None:
        key = chance.mixed(chance.mixed(self._seed, group.order.draw), member)
        key = chance.mixed(key, attempt) if attempt > 1 else key
        rounds = max(1, round(self._workload.rounds.draw(chance.mixed(key, _ROUNDS))))
        stages = deque(self._workload.stages * rounds)
        chances = chance.mixed(key, _TWIN) if twin else key  # what is said is the same, what machines take is not
        episode = Episode(group, member, attempt, chances, twin, stages, began=self._clock.now)
        group.playing.append(episode)
        self._ask_stage(episode, key)

    def _ask_stage(self, episode: Episode, key: int) -> None:
        """Ask the roles of the next stage, all beside each other."""
        for role in episode.stages.popleft():
            episode.asked[role] = self._turn(episode, role, key)
        for turn in list(episode.asked.values()):
            self._route(turn)

    def _turn(self, episode: Episode, role: str, key: int) -> Turn:
        number = episode.turns[role] = episode.turns.get(role, -1) + 1
        here = chance.mixed(chance.mixed(key, 100 + self._roles[role]), number)
        load, policy = self._workload.load(role), self._spec.policy_of(role)
        prompt, reply = load.prompt.draw(chance.mixed(here, 1)), load.reply.draw(chance.mixed(here, 2))
        command = episode.group.command

        def done(turn: Turn) -> None:
            self._answered(episode, role, number, turn, key)

        return Turn(policy, command.pins[policy], command.follows.get(policy, ""), prompt, max(1, round(reply)), done)

    def _route(self, turn: Turn) -> None:
        able = [engine for engine in self.engines.values() if engine.held.answering(turn) is not None]
        if not able:
            self._starved.setdefault(turn.policy, []).append(turn)
            return
        if len(able) == 1:
            able[0].ask(turn)
            return
        loads = [EngineLoad(one.name, running=one.running, waiting=one.waiting) for one in able]
        choice = self._router(RouteRequest(int(turn.prompt), turn.reply - turn.made), loads)
        next(one for one in able if one.name == choice.engine).ask(turn)

    def _answered(self, episode: Episode, role: str, number: int, turn: Turn, key: int) -> None:
        if episode.over:
            return
        del episode.asked[role]
        segments = tuple(turn.segments)
        if segments or turn.version != turn.pin.version:
            segments += (turn.version, turn.reply - sum(segments[1::2]))
        episode.samples.append(SampleRef(role=role, turn=number, tokens=turn.reply, segments=segments))
        if not episode.asked:
            episode.stage += 1
            seconds = self._workload.environment.draw(chance.mixed(episode.key, _ENVIRONMENT + 1000 * episode.stage))
            if episode.stage == 1:
                seconds += self._workload.slow_start.draw(chance.mixed(episode.key, _SLOW))
            self._clock.after(seconds, self._stage_done, episode, key)

    def _stage_done(self, episode: Episode, key: int) -> None:
        if episode.over:
            return
        if episode.stages:
            self._ask_stage(episode, key)
            return
        if not episode.twin:
            self._places.leave()
        self._clock.after(self._workload.reward.draw(chance.mixed(episode.key, _REWARD)), self._rewarded, episode)

    def _rewarded(self, episode: Episode) -> None:
        if episode.over:
            return
        group, workload = episode.group, self._workload
        episode.over = True
        group.playing.remove(episode)
        failed = workload.failure and chance.uniform(episode.key, _FAILS) < workload.failure
        if failed and episode.attempt < self._spec.batch.max_attempts:
            self._begin(group, episode.member, episode.attempt + 1, episode.twin)
            return
        if failed and any(other.member == episode.member for other in group.playing):
            return  # the environment beside it may still finish
        self._settle_member(episode, EpisodeStatus.FAILED if failed else EpisodeStatus.FINISHED)

    def _settle_member(self, episode: Episode, status: EpisodeStatus) -> None:
        group, finished = episode.group, status is EpisodeStatus.FINISHED
        for other in [one for one in group.playing if one.member == episode.member]:
            self._abandon(other)
        score = round(chance.uniform(chance.mixed(episode.key, _SCORE), 1), 3) if finished else 0.0
        outcome = EpisodeOutcome(
            member=episode.member, attempt=episode.attempt, status=status, replaced=episode.twin and finished,
            reason="" if finished else "simulated: attempts broke off", team_score=score,
            scores=dict.fromkeys(self._spec.agents, score), duration_s=self._clock.now - episode.began,
            samples=tuple(episode.samples) if finished else (),
        )  # fmt: skip
        self._remember(group.order.draw, outcome)
        group.outcomes[episode.member] = outcome
        self._next_member(group)
        if group.command.by_episode:
            self._tell(group, (outcome,), part=True)
        self._look(group)

    def _remember(self, draw: int, outcome: EpisodeOutcome) -> None:
        for ref in outcome.samples:
            self.tokens[draw, outcome.member, outcome.attempt, ref.role, ref.turn] = ref.tokens

    def _look(self, group: Group) -> None:
        """Settle a group that has all it needs, cancel what it does not need, play its slowest a second time."""
        finished = sum(o.status is EpisodeStatus.FINISHED for o in group.outcomes.values())
        order = group.order
        if order.enough and finished >= order.enough:
            self._cancel_rest(group)
        if len(group.outcomes) == order.members:
            group.over = True
            if not group.command.by_episode:
                self._tell(group, tuple(group.outcomes[member] for member in sorted(group.outcomes)))
        elif order.spares and order.members - len(group.outcomes) <= order.spares:
            twins = {one.member for one in group.playing if one.twin}
            for episode in [one for one in group.playing if not one.twin and one.member not in twins]:
                self._begin(group, episode.member, episode.attempt, twin=True)

    def _cancel_rest(self, group: Group) -> None:
        for episode in list(group.playing):
            self._abandon(episode)
        reason = f"rollout: {group.order.enough} members of its group had finished"
        for member in range(group.order.members):
            status = EpisodeStatus.CANCELLED
            outcome = EpisodeOutcome(member=member, attempt=1, status=status, reason=reason)
            group.outcomes.setdefault(member, outcome)

    def _abandon(self, episode: Episode) -> None:
        """Take an episode that counts no more off its engines; it gives its place up."""
        episode.over = True
        episode.group.playing.remove(episode)
        for turn in episode.asked.values():
            if turn.engine is not None:
                turn.engine.drop(turn)
            turn.phase = "ended"
        if not episode.twin and (episode.asked or episode.stages):
            self._places.leave()

    def _tell(self, group: Group, episodes: tuple[EpisodeOutcome, ...], part: bool = False) -> None:
        command = group.command
        self._told(
            e.GroupSettled(
                draw=group.order.draw, origin=command.origin, epoch=command.epoch, command_no=group.no,
                episodes=episodes, started_at=group.began, finished_at=self._clock.now, part=part,
                versions={name: pin.version for name, pin in command.pins.items()},
            )
        )  # fmt: skip
