"""What the core promises, under random schedules of joins, leaves, deaths, absences, repetitions and verbs.

A world under a virtual clock (tests/support/virtual) breaks the test at once where a row is applied twice or above
its bound, a number is used twice, a step's members or its Z differ, or pinned weights are let go; here is what remains
to be seen at the end: the run ends, everything is accounted for, and the log alone leads to the same decisions.
PROPERTY_EXAMPLES sets how many schedules are tried; more than the usual number are new ones each time.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from flexmarl.contracts.events import PauseMode, Verb
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus
from tests.support.virtual import faults
from tests.support.virtual.accounts import check_end
from tests.support.virtual.specs import AXES, legal, small_spec
from tests.support.virtual.world import World

USUAL = 60
EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", USUAL))

which = st.integers(0, 7)
absence = st.sampled_from([0.1, 0.8, 2.5, 6.0])
specs = st.tuples(*(st.sampled_from(options) for options in AXES.values())).map(lambda p: small_spec(*p)).filter(legal)
chances = st.fixed_dictionaries(
    {
        "refused": st.sampled_from([0.0, 0.0, 0.05]),
        "uncommitted": st.sampled_from([0.0, 0.1]),
        "episode": st.sampled_from([0.0, 0.05]),
    }
)
EXHAUSTED = frozenset({RunReason.COMMAND_FAILED, RunReason.CHILDREN_LOST, RunReason.EPISODES_FAILED})
"""A run may be given up in words when the same thing fails again and again; nothing else may end it early."""


class Schedules(RuleBasedStateMachine):
    """Everything that may happen to a run, in any order."""

    @initialize(seed=st.integers(0, 1 << 16), spec=specs, chances=chances)
    def begin(self, seed: int, spec: ExperimentSpec, chances: dict[str, float]) -> None:
        self.world = World(spec, seed=seed, chances=chances)
        self.asked = [self.world.ask(Verb.START)]
        self.world.clock.pass_by(0.5)

    @rule(seconds=st.sampled_from([0.02, 0.05, 0.1, 0.3, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.pass_by(seconds)

    @rule(which=which)
    def a_child_dies(self, which: int) -> None:
        faults.kill_child(self.world, which)

    @rule(which=which, seconds=absence)
    def a_child_stands_still(self, which: int, seconds: float) -> None:
        faults.stop_child(self.world, which, seconds)

    @rule(which=which, seconds=absence)
    def a_node_is_cut_off(self, which: int, seconds: float) -> None:
        faults.cut_off(self.world, which, seconds)

    @rule(which=which)
    def a_node_starts_anew(self, which: int) -> None:
        faults.restart_node(self.world, which)

    @rule(which=which)
    def a_node_leaves(self, which: int) -> None:
        faults.leave(self.world, which)

    @rule()
    def a_node_joins(self) -> None:
        faults.join(self.world)

    @rule()
    def nodes_come_back(self) -> None:
        faults.come_back(self.world)

    @rule(which=which)
    def a_device_is_gone(self, which: int) -> None:
        faults.end_lease(self.world, which)

    @rule(which=which)
    def a_rollout_worker_dies(self, which: int) -> None:
        faults.kill_rollout(self.world, which)

    @rule(which=which, seconds=absence)
    def a_rollout_worker_stands_still(self, which: int, seconds: float) -> None:
        faults.stop_rollout(self.world, which, seconds)

    @rule(seconds=absence)
    def hints_are_lost(self, seconds: float) -> None:
        faults.lose_hints(self.world, seconds)

    @rule(before_commit=st.booleans(), seconds=st.sampled_from([0.0, 0.0, 2.0]))
    def the_driver_dies(self, before_commit: bool, seconds: float) -> None:
        self.world.lose_driver(before_commit)
        self.world.away_until = self.world.clock.now + seconds

    @rule()
    def a_snapshot_is_written(self) -> None:
        self.world.save()

    @rule(which=st.integers(0, 200))
    def a_fact_is_told_again(self, which: int) -> None:
        faults.repeat_fact(self.world, which)

    @rule(mode=st.sampled_from(PauseMode), hold_s=st.sampled_from([None, 0.0, 0.5]))
    def somebody_pauses(self, mode: PauseMode, hold_s: float | None) -> None:
        self.asked.append(self.world.ask(Verb.PAUSE, mode=mode, hold_s=hold_s))

    @rule()
    def somebody_resumes(self) -> None:
        self.asked.append(self.world.ask(Verb.RESUME))

    @precondition(lambda self: len(self.asked) > 3)
    @rule(verb=st.sampled_from([Verb.STOP, Verb.KILL, Verb.RETRY]))
    def somebody_ends_or_retries(self, verb: Verb) -> None:
        self.asked.append(self.world.ask(verb))

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        faults.heal(world)
        world.clock.pass_by(5.0)
        if world.status in (RunStatus.PAUSED, RunStatus.PAUSING):
            self.asked.append(world.ask(Verb.RESUME))
        world.run(lambda w: w.status in TERMINAL and not w.store.inbox)
        world.clock.pass_by(5.0)
        check_end(world, self.asked)
        if world.status is RunStatus.FAILED:
            assert world.core.state.lifecycle.reason in EXHAUSTED, world.core.state.lifecycle.reason_text
        world.replay()


TestSchedules = pytest.mark.slow(Schedules.TestCase)
TestSchedules.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    derandomize=EXAMPLES <= USUAL,
    suppress_health_check=list(HealthCheck),
)
