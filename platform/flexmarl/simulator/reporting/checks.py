"""Named faults of scheduling, found while a run is simulated: each with its evidence and what to do about it.

A check compares what the core's state shows after each decision with what must not last in it. It decides nothing and
takes no word of the code that it looks at: whether there is credit is asked of the lag rule itself, whether a slice is
complete of its size, whether a place moved of who serves what.

- `ping_pong`: places go to and fro between two policies, and loads take much of the time in between.
- `double_throttle`: a limit has room for more, and engines stand still all the same: the lag rule for another cohort,
  the limits of episodes at once for another member.
- `head_of_line`: settled groups fill a slice and are not cut, while one group that is not settled comes before them.
- `starvation`: a policy waits for a device while others get theirs again and again; or a turn waits while others that
  came later are answered.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain

from flexmarl.algorithms.movers.demand import STINT_LOADS
from flexmarl.contracts import events as e
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.cohorts.admission import steps_before
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.serving.weight_sync import served
from flexmarl.orchestrator.state.lag import admit
from flexmarl.orchestrator.types import Decision
from flexmarl.simulator.cluster.cluster import Cluster
from flexmarl.simulator.reporting.overtaking import Overtaking
from flexmarl.simulator.rollout.groups import idle_places
from flexmarl.simulator.scenarios.scenario import Machine

REVERSALS = 3
"""So many of them between the same two policies are no coincidence."""
SHORT_S = 5.0
"""What the platform itself takes to see and to change something; a state that lasts longer is no delay."""
SERVED_AGAIN = 2
"""Turns that another policy may have while one waits: it cannot have had two if whoever waits longest comes first."""


@dataclass(frozen=True, slots=True)
class SchedulingFault:
    name: str
    since: float
    until: float
    evidence: str
    advice: str


@dataclass(slots=True)
class _Spell:
    """How long something has held, without a break."""

    since: float | None = None
    longest: tuple[float, float] = (0.0, 0.0)
    what: str = ""
    total: float = 0.0
    _at: float = 0.0

    def look(self, now: float, holds: bool, what: str = "") -> None:
        """Note whether it holds from now on."""
        if self.since is not None:
            self.total += now - self._at
            if now - self.since > self.longest[1] - self.longest[0]:
                self.longest = self.since, now
        self._at = now
        if not holds:
            self.since = None
        elif self.since is None:
            self.since = now
        if (holds and self.since == now) or not self.what:
            self.what = what or self.what

    @property
    def seconds(self) -> float:
        """Return the length of the longest one."""
        return self.longest[1] - self.longest[0]


@dataclass(slots=True)
class Checks:
    """Looks at a run after each decision."""

    cluster: Cluster
    machine: Machine
    _serves: dict[int, frozenset[str]] = field(default_factory=dict)
    _moves: dict[tuple[int, str, str], float] = field(default_factory=dict)
    _reversals: dict[frozenset[str], list[tuple[float, float, int]]] = field(default_factory=dict)
    _throttled: _Spell = field(default_factory=_Spell)
    _blocked: _Spell = field(default_factory=_Spell)
    _places: _Spell = field(default_factory=_Spell)
    _bound: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(who waits, who was served meanwhile) -> how often."""
    _waits: dict[str, float] = field(default_factory=dict)
    _starved: dict[str, SchedulingFault] = field(default_factory=dict)

    _turns: Overtaking = field(init=False)

    def __post_init__(self) -> None:
        self._turns = Overtaking(self.cluster.playing)

    @classmethod
    def over(cls, cluster: Cluster, machine: Machine) -> "Checks":
        """Look at a run from now on."""
        checks = cls(cluster, machine)
        cluster.driver.heard = checks._look
        cluster.playing.engines.asked_for = lambda turn: checks._turns.look(cluster.clock.now)
        return checks

    def findings(self) -> list[SchedulingFault]:
        """Return what was found up to now."""
        found = [*self._to_and_fro(), *self._starved.values()]
        if self._throttled.seconds > SHORT_S:
            found.append(
                SchedulingFault(
                    "double_throttle", *self._throttled.longest,
                    f"for {self._throttled.seconds:.1f} s, and {self._throttled.total:.1f} s in all, no engine had a "
                    f"turn, although the lag rule allowed another cohort: {self._throttled.what}",
                    "Let one limit decide: look for what else holds cohorts back.",
                )
            )  # fmt: skip
        if self._places.seconds > SHORT_S:
            found.append(
                SchedulingFault(
                    "double_throttle", *self._places.longest,
                    f"for {self._places.seconds:.1f} s no engine had a turn, although {self._places.what}",
                    "Let one limit decide: mechanisms.parallel.episodes or members, and look for what else holds them.",
                )
            )  # fmt: skip
        found += [
            SchedulingFault(
                "starvation", *turn,
                "Serve turns of one rank in the order in which they came; for more room raise machine.engine.slots.",
            )
            for turn in self._turns.findings(SHORT_S)
        ]  # fmt: skip
        if self._blocked.seconds > SHORT_S:
            found.append(
                SchedulingFault(
                    "head_of_line", *self._blocked.longest,
                    f"for {self._blocked.seconds:.1f} s a full slice lay uncut and no gradient was asked for: "
                    f"{self._blocked.what}",
                    "Cut groups as they settle; let an order wait only where `ordered` promises it.",
                )
            )  # fmt: skip
        return found

    def _look(self, now: float, fact: e.Event, decision: Decision) -> None:
        if decision.status is not RunStatus.RUNNING:
            return
        core = self.cluster.driver.core
        ctx = Context(core.plan, core.state, now)
        if core.plan.engines.places is not None:
            self._see_moves(now, ctx)
        self._throttled.look(now, *self._credit(ctx))
        self._places.look(now, *self._room())
        self._blocked.look(now, *self._uncut(ctx))
        if core.plan.trainers.allocates:
            self._see_waits(now, ctx, decision)

    def _see_moves(self, now: float, ctx: Context) -> None:
        serves = {
            n: frozenset(lease.weights.assigned)
            for n, lease in ctx.state.fleet.leases.items()
            if lease.weights.assigned
        }
        for lease, own in serves.items():
            gone, came = self._serves.get(lease, own) - own, own - self._serves.get(lease, own)
            if len(gone) != 1 or len(came) != 1:
                continue
            (out,), (into,) = gone, came
            former = self._moves.get((lease, into, out))
            if former is not None and now - former < self._short(out):
                self._reversals.setdefault(gone | came, []).append((former, now, lease))
            self._moves[lease, out, into] = now
        self._serves = serves

    def _short(self, policy: str) -> float:
        """Return the time in which a place is hardly worth the load that it cost."""
        return STINT_LOADS * self.machine.engine.load * self.machine.times(policy)

    def _to_and_fro(self) -> list[SchedulingFault]:
        found = []
        for pair, times in self._reversals.items():
            if len(times) >= REVERSALS:
                one, other = sorted(pair)
                leases = ", ".join(str(lease) for lease in sorted({lease for _, _, lease in times}))
                found.append(
                    SchedulingFault(
                        "ping_pong", times[0][0], times[-1][1],
                        f"places went from {one} to {other} and back {len(times)} times on leases {leases}, after "
                        f"{max(back - at for at, back, _ in times):.1f} s at most, of which loads are a large part",
                        "Raise mechanisms.mover.hold_s or delta, or give engines more places (engine_policies).",
                    )
                )  # fmt: skip
        return found

    def _credit(self, ctx: Context) -> tuple[bool, str]:
        """Tell whether nothing is played while the lag rule allows a cohort that nobody opened."""
        state, spec = ctx.state, ctx.plan.spec
        if self._answering():
            return False, ""
        plays = any(cohort.open for cohort in state.cohorts) or state.evaluation is not None
        if plays or state.numbers.cohort >= spec.budget.train_steps or not state.cohorts:
            return False, ""
        lags = {name: spec.lag_policy_of(name) for name in ctx.plan.trainable}
        verdict = admit(lags, {name: steps_before(ctx, name) for name in lags}, playing=0)
        if not verdict.allowed or not served(ctx) or state.outstanding.any_of("devices"):
            return False, ""
        return True, f"{len(state.cohorts)} cohorts were open, {state.numbers.cohort} begun"

    def _answering(self) -> bool:
        """Tell whether any engine has a turn."""
        return any(engine.running or engine.waiting for engine in self.cluster.playing.engines.values())

    def _room(self) -> tuple[bool, str]:
        """Tell whether nothing is answered while members wait that every limit of episodes at once leaves room for."""
        playing, parallel = self.cluster.playing, self.cluster.scenario.spec.mechanisms.parallel
        free = 0 if self._answering() else idle_places(chain(*playing.groups.values()), parallel)
        return free > 0, f"{free} members wait that mechanisms.parallel has room for"

    def _uncut(self, ctx: Context) -> tuple[bool, str]:
        """Tell whether a slice could be cut, while the trainers have nothing to do."""
        plan, state = ctx.plan, ctx.state
        cohort = state.cohort
        if cohort is None or not plan.cutting.streaming or plan.ordered or cohort.times.settled_at is not None:
            return False, ""
        size = plan.cutting.slice_groups * (plan.cohort.members if plan.cutting.by_episode else 1)
        if len(cohort.pending) < size or state.outstanding.any_of("accumulate"):
            return False, ""
        settled = sorted(group.draw for group in cohort.pending)
        return True, f"draws {settled[:8]} of cohort {cohort.no} are settled, draw {min(cohort.open)} is not"

    def _see_waits(self, now: float, ctx: Context, decision: Decision) -> None:
        policies = {name: ctx.state.policies[name].placement for name in ctx.plan.trainable}
        bound = [ruling.policy for ruling in decision.rulings if ruling.kind is RulingKind.DEVICES_BOUND]
        for name, placement in policies.items():
            since = placement.waiting_since
            if since is None or self._waits.get(name) != since:
                for key in [key for key in self._bound if key[0] == name]:
                    del self._bound[key]
            if since is None:
                self._waits.pop(name, None)
                continue
            self._waits[name] = since
            for other in bound:
                self._bound[name, other] += 1
            most = max(((self._bound[name, other], other) for other in policies if other != name), default=(0, ""))
            if most[0] >= SERVED_AGAIN and now - since > SHORT_S:
                self._starved[name] = SchedulingFault(
                    "starvation", since, now,
                    f"{name} has work and no device since {since:.1f} s; meanwhile {most[1]} was bound {most[0]} times",
                    "Serve whoever waits longest; for more room raise resources.training_devices or trainer_policies.",
                )  # fmt: skip
