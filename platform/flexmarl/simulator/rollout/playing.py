"""A model of the rollout workers: groups are played member by member, turn by turn, until they settle.

Turns are routed by the router of real runs, over loads that are exact where a real worker's are some milliseconds old.
Invariants: every group of a command settles exactly once, or part by part where episodes settle alone, unless its
command is void; every member has one outcome.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import islice
from typing import Any

from flexmarl.algorithms.routing import ROUTERS
from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.expected_lengths import ExpectedLengths
from flexmarl.simulator.devices.fleet import SimulatedFleet
from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.rollout import facts
from flexmarl.simulator.rollout.ageing import outgrown
from flexmarl.simulator.rollout.groups import (
    Episode,
    EpisodeSlots,
    EpisodeTurn,
    SimulatedGroup,
    Team,
    given_up,
    outcome_of,
)
from flexmarl.simulator.rollout.round_barrier import RoundBarrier
from flexmarl.simulator.rollout.scoring import Scoring
from flexmarl.simulator.rollout.unserved_turns import HeldTurns, StarvedTurns
from flexmarl.simulator.rollout.worker_time import WorkerTime
from flexmarl.simulator.scenarios.draws import Draws, Script, Sheet, breaks_off
from flexmarl.simulator.scenarios.recorded import RecordedDraws, scripts_of
from flexmarl.simulator.scenarios.scenario import Scenario, Workload

Told = Callable[[e.Event], None]
SampleId = tuple[int, int, int, str, int]
"""(draw, member, attempt, role, turn)"""


@lru_cache(maxsize=4096)
def _turns_asked(waiting: int, in_flight: int) -> e.RequestedTurns:
    return e.RequestedTurns(waiting=waiting, in_flight=in_flight)


class RolloutModel:
    def __init__(self, clock: Clock, host: Clock, scenario: Scenario, told: Told) -> None:
        spec, workload = scenario.spec, scenario.workload
        chosen = spec.mechanisms.router
        expected_lengths = ExpectedLengths(workload, chosen.type == "skew_aware") if chosen.reads_lengths else None
        self.engines = SimulatedFleet(ROUTERS.make(chosen), expected_lengths)
        """Those that are ready."""
        self.tokens: dict[SampleId, int] = {}
        """Reply tokens of every sample of a settled group, until they are forgotten."""
        self.begun: Callable[[Episode], None] | None = None
        """Told of every attempt at an episode that begins."""
        self._clock, self._told = clock, told
        roles = {role: number for number, role in enumerate(sorted(spec.agents))}
        self._draws: Draws[Any] | RecordedDraws = self._drawn(workload, roles, scenario.seed)
        self._team = Team.of(scenario)
        self.groups: dict[int, list[SimulatedGroup]] = {}
        self._starved = StarvedTurns()
        self.held = HeldTurns(self._route, self.groups)
        self._scoring = Scoring(clock, workload)
        self.worker_time = WorkerTime(host, scenario.machine.delays, EpisodeSlots(spec.mechanisms.parallel.episodes))

    def play(self, no: int, command: c.PlayGroups) -> None:
        """Begin with the groups of a command."""
        self.groups[no] = groups = []
        parallel = self._team.scenario.spec.mechanisms.parallel
        together = RoundBarrier(self._clock) if parallel.turns == "together" else None
        now, seats, shares = self._clock.now, self._team.seats(command), self._team.shares
        for order in command.groups:
            members = deque(range(order.members))
            groups.append(SimulatedGroup(no, command, order, now, seats, shares, waiting=members, together=together))
        for group in groups:
            for _ in range(min(group.order.members, parallel.members or group.order.members)):
                self._next_member(group)

    @property
    def plays(self) -> bool:
        """Tell whether any group is played."""
        return bool(self.groups)

    def withdraw(self, numbers: Iterable[int]) -> None:
        """Forget the groups of commands that are void."""
        for no in numbers:
            for group in self.groups.pop(no, ()):
                group.over = True
                for episode in list(group.playing):
                    self._abandon(episode)

    def open_commands(self) -> list[int]:
        """List the commands of which something is played."""
        return [no for no, groups in self.groups.items() if not all(group.over for group in groups)]

    def break_off(self, no: int) -> tuple[c.PlayGroups | None, float]:
        """Forget what is played of a command; returns what of it is to be played again, and the tokens it had."""
        left = [group for group in self.groups[no] if not group.over]
        begun = [episode for group in left for episode in group.playing]
        self.withdraw([no])
        tokens = sum(episode.made() for episode in begun)
        orders = tuple(group.order for group in left)
        return left[0].command.model_copy(update={"groups": orders}) if left else None, tokens

    def weights(self, policy: str) -> None:
        """Let turns be asked again whose weights an engine holds now: workers have learned of it."""
        for turn in self._starved.pop(policy):
            self._route(turn)

    def hand_back(self, turn: SimulatedTurn) -> None:
        """Let a turn go on at another engine."""
        if turn.engine is not None:
            turn.engine.drop(turn)
        if turn.follow == "restart_turn":
            turn.made, turn.segments = 0.0, ()
        self._route(turn)

    def starved(self) -> list[SimulatedTurn]:
        """List the turns whose weights no engine holds."""
        return self._starved.turns()

    def demand(self) -> dict[str, e.RequestedTurns]:
        """Count the turns of each policy that no engine and that an engine has."""
        held = self.engines.asked
        starved = self._starved.counts()
        counts = {name: (starved[name], held.get(name, 0)) for name in sorted({*held, *starved})}
        return {name: _turns_asked(*both) for name, both in counts.items() if any(both)}

    def _next_member(self, group: SimulatedGroup) -> None:
        """Begin with a group's next member as soon as the run has a place for it."""
        if group.waiting and not group.over:
            self.worker_time.places.enter(self._begin_member, group, group.waiting.popleft())

    def _begin_member(self, group: SimulatedGroup, member: int) -> bool:
        if not group.over:
            self._begin(group, member, 1, twin=False)
        return not group.over

    def _begin(self, group: SimulatedGroup, member: int, attempt: int, twin: bool) -> None:
        order = group.order
        script: Script | Sheet = self._draws.script(order.draw, member, order.members, attempt, order.task_seed)
        if twin:
            script = self._draws.beside(script)
        episode = Episode(group, member, attempt, twin, script, self._clock.now)
        group.playing.append(episode)
        if self.begun is not None:
            self.begun(episode)
        self._scoring.begun(episode)
        if group.together is not None:
            group.together.enter(episode)
        self._start(episode)

    def _drawn(self, workload: Workload, roles: dict[str, int], seed: int) -> Draws[Any] | RecordedDraws:
        return scripts_of(workload, roles, seed)

    def _start(self, episode: Episode) -> None:
        self._next_stage(episode)

    def _stop(self, episode: Episode) -> None:
        """Take an episode off its engines."""
        for turn in episode.asked.values():
            if turn.engine is not None:
                turn.engine.drop(turn)
            turn.phase = "ended"

    def _ask_stage(self, episode: Episode) -> None:
        """Ask the roles of the next stage, as many beside each other as may be asked at once; one too old ends here."""
        if why := outgrown(self._team, self.engines.newest, episode):
            return self._give_up(episode, why)
        script, group, asked = episode.script, episode.group, episode.asked
        assert isinstance(script, Script)
        seats, to, answered = group.seats, group.command.engine, self._answered
        widths = script.widths or self._team.widths
        width = widths[episode.stage % len(widths)]
        episode.stage += 1
        for role, number, prompt, reply in islice(script.turns, width):
            policy, pinned, follow, scale = seats[role]
            prefixes = episode.prefixes(role) if group.shares else ()
            asked[role] = EpisodeTurn(
                policy, pinned, follow, prompt, reply, answered, role, scale, to, 0.0, prefixes,
                episode=episode, number=number,
            )  # fmt: skip
        if self.worker_time.busy:
            command = group.no if episode.stage == 1 else 0
            self.worker_time.take(episode.script.key, len(asked), partial(self._send, episode), command)
        else:
            self._send(episode)

    def _send(self, episode: Episode) -> None:
        """Let the turns of a stage find their engines."""
        if episode.over:
            return
        turns, at_once = list(episode.asked.values()), self._team.at_once
        if at_once is not None:
            episode.held += turns[at_once:]
            del turns[at_once:]
        for turn in turns:
            self._route(turn)

    def _route(self, turn: SimulatedTurn) -> None:
        if not self.held.keeps(turn) and not self.engines.send(turn):
            self._starved.add(turn)

    def _answered(self, turn: SimulatedTurn) -> None:
        assert isinstance(turn, EpisodeTurn)
        episode = turn.episode
        if self.engines.learns:
            self.engines.ended(turn)
        if episode.over:
            return
        del episode.asked[turn.role]
        segments = turn.segments
        if segments or turn.version != turn.pinned:
            left = turn.reply - sum(segments[1::2])
            segments += (turn.version, left) if left else ()
        episode.rows.append(facts.sample(turn.role, turn.number, turn.reply, segments))
        if episode.held:
            self._route(episode.held.pop(0))
        if not episode.asked:
            self._clock.after(episode.script.waits[episode.stage - 1], self._stage_done, episode)

    def _stage_done(self, episode: Episode) -> None:
        if episode.over:
            return
        if episode.stage < len(episode.script.waits):
            self._next_stage(episode)
            return
        if episode.group.together is not None:
            episode.group.together.leave(episode)
        self._played(episode, self._clock.now)

    def _next_stage(self, episode: Episode) -> None:
        """Ask the next stage now, or when the other episodes have come as far."""
        together = episode.group.together
        if together is None:
            self._ask_stage(episode)
        else:
            together.turn(episode, partial(self._ask_stage, episode))

    def _played(self, episode: Episode, when: float) -> None:
        """Let the reward of an episode be found whose environment was done at a moment, unless that broke off then."""
        episode.played = True
        if breaks_off(self._team.scenario.workload, episode.script.key, self._clock.now):
            self._clock.at(when, self._broke_off, episode)
            return
        if not episode.twin:
            self.worker_time.places.leave()
        self._scoring.score(when, self._rewarded, episode)

    def _broke_off(self, episode: Episode) -> None:
        """Try an episode again in the place that it has; the last attempt leaves it, without a reward."""
        group, counts = episode.group, not episode.over
        again = counts and episode.attempt < self._team.scenario.spec.batch.max_attempts
        if counts:
            episode.over = True
            group.playing.remove(episode)
        if again:
            self._begin(group, episode.member, episode.attempt + 1, episode.twin)
        elif not episode.twin:
            self.worker_time.places.leave()
        self._scoring.over(episode)
        if counts and not again and all(other.member != episode.member for other in group.playing):
            self._settle_member(episode, "simulated: attempts broke off")  # else the one beside it may still finish

    def _rewarded(self, episode: Episode) -> None:
        if not episode.over:
            episode.over = True
            episode.group.playing.remove(episode)
            self._settle_member(episode, "")

    def _settle_member(self, episode: Episode, why: str) -> None:
        """Note how a member ended; `why` it failed is empty when it did not."""
        group, finished = episode.group, not why
        if group.order.spares:  # another one may play beside it
            for other in [one for one in group.playing if one.member == episode.member]:
                self._abandon(other)
        outcome = outcome_of(episode, why, self._team.policies, self._clock.now)
        self._remember(group.order.draw, outcome)
        group.finished += finished
        self._member_ended(group, outcome)

    def _give_up(self, episode: Episode, why: str) -> None:
        """End an episode between two turns of which nothing can be trained any more."""
        group = episode.group
        self._abandon(episode)
        if all(other.member != episode.member for other in group.playing):  # else the one beside it may still finish
            self._member_ended(group, given_up(episode, why, self._clock.now))

    def _member_ended(self, group: SimulatedGroup, outcome: EpisodeOutcome) -> None:
        """Let another member have the place of one that ended, and look at what its group needs now."""
        group.outcomes[outcome.member] = outcome
        self._next_member(group)
        if group.command.by_episode:
            self._tell(group, (outcome,), part=True)
        self._look(group)

    def _remember(self, draw: int, outcome: EpisodeOutcome) -> None:
        key = draw, outcome.member, outcome.attempt
        self.tokens.update({(*key, ref.role, ref.turn): ref.tokens for ref in outcome.samples})

    def _look(self, group: SimulatedGroup) -> None:
        """Settle a group that has all it needs, cancel what it does not need, play its slowest a second time."""
        order = group.order
        if order.enough and group.finished >= order.enough:
            self._cancel_rest(group)
        if len(group.outcomes) == order.members:
            self._end(group)
            if not group.command.by_episode:
                self._tell(group, tuple(group.outcomes[member] for member in sorted(group.outcomes)))
        elif order.spares and order.members - len(group.outcomes) <= order.spares:
            twins = {one.member for one in group.playing if one.twin}
            for episode in [one for one in group.playing if not one.twin and one.member not in twins]:
                self._begin(group, episode.member, episode.attempt, twin=True)

    def _end(self, group: SimulatedGroup) -> None:
        group.over = True
        beside = self.groups[group.no]
        beside.remove(group)
        if not beside:
            del self.groups[group.no]

    def _cancel_rest(self, group: SimulatedGroup) -> None:
        group.over = True  # places that come free are for others
        for episode in list(group.playing):
            self._abandon(episode)
        _cancel_others(group)

    def _abandon(self, episode: Episode) -> None:
        """Take an episode that counts no more off its engines; it gives its place up."""
        episode.over = True
        if episode.group.together is not None:
            episode.group.together.leave(episode)
        episode.group.playing.remove(episode)
        self._stop(episode)
        self._scoring.over(episode)
        if not episode.twin and not episode.played:
            self.worker_time.places.leave()

    def _tell(self, group: SimulatedGroup, episodes: tuple[EpisodeOutcome, ...], part: bool = False) -> None:
        command, draw = group.command, group.order.draw
        versions = {name: pin.version for name, pin in command.pins.items()}
        fact = facts.settled(group.no, command, draw, group.began, self._clock.now, episodes, versions, part)
        self.worker_time.settle(self._told, fact)


def _cancel_others(group: SimulatedGroup) -> None:
    """Note that the members of a group that have not ended are cancelled."""
    reason, status = f"rollout: {group.order.enough} members of its group had finished", EpisodeStatus.CANCELLED
    for member in range(group.order.members):
        group.outcomes.setdefault(member, EpisodeOutcome(member=member, attempt=1, status=status, reason=reason))
