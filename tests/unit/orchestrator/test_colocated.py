"""Engines and trainers that share devices: the pure decision for every schedule, and whole runs under faults."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.contracts import events as e
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.allocation.colocation import SharedDevice, lent, may_load, turn, whose
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, running, started


class Device:
    """A device as it really is: what was asked for is done at any later time, or the child dies first."""

    def __init__(self):
        self.answers, self.manned = True, True
        self.asleep, self.vacant = False, False
        self.asked = set()
        self.engine, self.trainer = 0, 0
        """Bytes that each has on it."""

    def seen(self):
        return SharedDevice(
            engine=1, trainer=2, answers=self.answers, asleep=self.asleep, turning=bool({"sleep", "wake"} & self.asked),
            loading="load" in self.asked, residents=("solver",) if self.trainer or "bind" in self.asked else (),
            manned=self.manned, vacant=self.vacant, leaving="vacate" in self.asked,
        )  # fmt: skip

    def drive(self, hand, works):
        """Do what the core does with what is decided."""
        wanted = turn(hand, self.seen())
        assert wanted is None or wanted not in self.asked, "asked twice"
        self.asked |= {wanted} - {None}
        if hand == "trainers" and works and self.manned and not self.seen().residents and lent(self.seen()):
            assert not self.answers or (self.asleep and "wake" not in self.asked), "its engine may come by memory"
            assert "vacate" not in self.asked, "it is about to let go of everything"
            self.asked.add("bind")
            self.vacant = False
        if hand == "engines" and self.trainer:
            self.asked.add("suspend")
        if may_load(hand, self.seen()) and not self.engine:
            self.asked.add("load")

    def happen(self, what):
        if what in self.asked:
            self.asked.remove(what)
            self.asleep = {"sleep": True, "wake": False}.get(what, self.asleep)
            self.vacant = self.vacant or what == "vacate"
            self.engine = {"sleep": 0, "load": 1}.get(what, self.engine)
            self.trainer = {"bind": 1, "suspend": 0, "vacate": 0}.get(what, self.trainer)
        elif what == "engine dies":
            self.answers, self.asleep, self.engine = False, False, 0
            self.asked -= {"sleep", "wake", "load"}
        elif what == "trainer dies":
            self.manned, self.vacant, self.trainer = False, False, 0
            self.asked -= {"bind", "suspend", "vacate"}
        elif what == "engine starts":
            self.answers = True
        elif what == "trainer starts":
            self.manned = True


HAPPENS = (
    "sleep", "load", "wake", "bind", "suspend", "vacate",
    "engine dies", "engine starts", "trainer dies", "trainer starts",
)  # fmt: skip
WORK = st.tuples(st.booleans(), st.booleans())
STORY = st.lists(st.tuples(WORK, st.sampled_from(HAPPENS)), max_size=60)


def lived(story):
    """Let a story happen; yields the device after each line of it, and whose turn it is."""
    device, hand = Device(), "trainers"
    for (plays, trains), what in story:
        hand = whose(hand, plays=plays, trains=trains)
        device.drive(hand, trains)
        device.happen(what)
        yield device, hand


@settings(max_examples=400, deadline=None)
@given(STORY)
def test_an_engine_and_a_trainer_never_both_have_a_device(story):
    for device, hand in lived(story):
        engine = device.engine or "load" in device.asked
        trainer = device.trainer or "bind" in device.asked
        assert not (engine and trainer), f"both have it in the {hand}' hand: {vars(device)}"
        assert not (device.engine and device.asleep), "an engine that sleeps has memory"


@settings(max_examples=200, deadline=None)
@given(STORY, st.sampled_from(["play", "train"]))
def test_whoever_alone_has_something_to_do_gets_the_device(story, side):
    device, hand = Device(), "trainers"
    for device, hand in lived(story):  # noqa: B007 - the last one counts
        pass
    plays, trains = side == "play", side == "train"
    for _ in range(6):
        for what in ("engine starts", "trainer starts", "sleep", "load", "wake", "bind", "suspend", "vacate"):
            hand = whose(hand, plays=plays, trains=trains)
            device.drive(hand, trains)
            device.happen(what)
    assert device.engine if plays else device.trainer, f"{side} never began: {vars(device)}"


@given(WORK)
def test_a_side_with_work_keeps_what_it_has(work):
    plays, trains = work
    assert whose("engines", plays=True, trains=trains) == "engines"
    assert whose("trainers", plays=plays, trains=True) == "trainers"
    assert whose("trainers", plays=plays, trains=False) == "engines"


def colocated(devices=1, trainers=1, **changes):
    return make_spec(
        resources__rollout_devices=devices, resources__training_devices=trainers, mechanisms__allocation="colocated",
        **changes,
    )  # fmt: skip


def ended_well(cluster):
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
    assert cluster.core.state.step == cluster.spec.budget.train_steps
    return cluster


def turns(cluster):
    return [r.cause for d in cluster.decisions for r in d.rulings if r.kind is RulingKind.DEVICES_TURNED]


MIXES = {
    "strict": {},
    "one place": {"resources__trainer_policies": 1},
    "batch": {"mechanisms__trainer_protocol": "batch"},
    "mini-batches": {"mechanisms__trainer_protocol": "mini_batch", "batch__mini_batches": 3,
                     "mechanisms__lag_policy": {"bound": 4}},
    "bounded": {"mechanisms__lag_policy": {"bound": 2}},
    "dropping": {"mechanisms__lag_policy": {"bound": 1, "at_cut": "drop"}},
    "surplus plays on": {"mechanisms__lag_policy": {"bound": 1},
                         "mechanisms__redundancy": {"type": "extra_groups", "extra": 2, "surplus": "continue"}},
    "by episode": {"batch__settle": "episode", "algorithm__advantage__type": "reinforce"},
    "ordered": {"mechanisms__ordered": True},
}  # fmt: skip


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("devices", "trainers"), [(1, 1), (2, 1), (2, 2)])
def test_a_run_on_the_engines_own_devices_ends(devices, trainers, mix):
    cluster = ended_well(started(colocated(devices, trainers, **MIXES[mix]), seed=5))
    found = turns(cluster)
    assert found[0] == "to_engines"
    assert all(a != b for a, b in itertools.pairwise(found)), "turned to who had them"
    assert len({lease.device_id for lease in cluster.core.state.fleet.leases.values()}) <= devices
    if mix == "strict":
        assert len(found) <= 2 * cluster.spec.budget.train_steps + 3, (
            "turned more often than once there and back a step"
        )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("devices", "trainers", "mix"), [(1, 1, "strict"), (2, 2, "one place"), (2, 1, "bounded")])
def test_nothing_is_lost_or_trained_twice_under_faults(devices, trainers, mix, seed):
    faults = Faults(twice=0.1, child_death=0.01, lease_end=0.001, uncommitted=0.05, refused=0.02, zombie=0.05,
                    recall=0.002, gang_recall=0.01, episode_failure=0.02)  # fmt: skip
    spec = colocated(devices, trainers, **MIXES[mix])
    cluster = started(spec, seed=seed, faults=faults, round_trip=seed % 2 == 0)
    cluster.run()
    assert cluster.status in (RunStatus.COMPLETED, RunStatus.FAILED)


@pytest.mark.parametrize("seed", [11, 16, 21, 23])
def test_what_a_dead_child_was_asked_to_take_may_be_with_its_successor(seed):
    """Successors take open commands before anybody hears of the death: the devices are not the other side's yet."""
    devices, trainers = [(3, 1), (3, 2), (2, 1)][seed % 3]
    spec = make_spec(
        resources__rollout_devices=devices, resources__training_devices=trainers,
        mechanisms__allocation={"type": "colocated"},
    )  # fmt: skip
    ended_well(started(spec, seed=seed, faults=Faults(child_death=0.15), round_trip=seed % 2 == 0))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("trainers", [1, 2])
def test_engines_that_serve_one_policy_each_load_it_again_when_they_wake(trainers, seed):
    faults = Faults(twice=0.1, child_death=0.01, lease_end=0.001, recall=0.002) if seed else Faults()
    spec = colocated(2, trainers, resources__engine_policies=1)
    cluster = started(spec, seed=seed, faults=faults, round_trip=seed % 2 == 0)
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
    loads = {(command.lease_id, command.policy) for command in cluster.commands("load_weights")}
    assert seed or len(loads) == 2
    assert len(turns(cluster)) > cluster.spec.budget.train_steps


def test_steps_are_those_of_a_run_with_devices_of_its_own():
    own = ended_well(started(make_spec(mechanisms__allocation="static"), seed=1, turns=1))
    shared = ended_well(started(colocated(), seed=1, turns=1))
    assert shared.versions == own.versions
    assert shared.trained == own.trained


def test_the_two_on_a_device_are_given_back_together():
    cluster = running(colocated(), seed=2)
    [engine] = cluster.core.state.fleet.of_use(e.DeviceUse.ENGINE)
    [trainer] = cluster.core.state.fleet.of_use(e.DeviceUse.TRAINER)
    assert (trainer.sharing.engine_lease, trainer.device_id) == (engine.lease_id, engine.device_id)
    cluster.end_lease(trainer.lease_id, "device gone")
    ended_well(cluster)
    assert engine.lease_id in [command.lease_id for command in cluster.commands("release_lease")]


def test_a_recalled_device_is_given_back_whole_between_two_steps():
    cluster = running(colocated(), seed=2)
    [engine] = cluster.core.state.fleet.of_use(e.DeviceUse.ENGINE)
    cluster.recall(engine.lease_id)
    ended_well(cluster)
    released = [command.lease_id for command in cluster.commands("release_lease")]
    assert released[:2] == [1, 2]
    assert len([c for c in cluster.commands("request_devices") if c.beside]) == 2


@pytest.mark.parametrize("who", ["engine", "trainer"])
@pytest.mark.parametrize("hand", ["engines", "trainers"])
def test_a_child_that_dies_in_the_middle_of_a_turn_leaves_the_device_in_one_hand(who, hand):
    cluster = running(colocated(), seed=4)
    cluster.run(until=lambda x: x.core.state.step >= 1)
    cluster.run(until=lambda x: turning(x.core.state, hand))
    lease = cluster.core.state.fleet.leases[1 if who == "engine" else 2]
    del cluster.children[lease.lease_id]
    cluster.tell(e.ChildLost(lease_id=lease.lease_id, incarnation=lease.child.incarnation, reason="killed"))
    cluster.start_child(lease.lease_id)
    ended_well(cluster)


def turning(state, hand):
    waiting = state.outstanding
    return state.fleet.shared.side == hand and any(
        waiting.any_of(family) for family in ("sleep", "wake", "suspend", "vacate")
    )


def mixed(homes=True, **changes):
    """Two engines and two trainers on three devices: one is shared."""
    allocation = {"type": "colocated", "own_devices": 1}
    if homes:
        allocation["homes"] = {"speaker": [0], "listener": [1]}
    places = {} if homes else {"resources__trainer_policies": 1}
    return make_spec(
        resources__rollout_devices=2, resources__training_devices=2, mechanisms__allocation=allocation,
        **places, **changes,
    )  # fmt: skip


def gangs(**changes):
    """One policy takes both of the devices that the engines have."""
    return colocated(
        2, 2, policies={"speaker": {"devices": 2}, "listener": {"devices": {"least": 1, "most": 2}}}, **changes
    )


def trained_where(cluster):
    """List who was trained while an episode played, and where each was trained: shared or not."""
    state, beside, places = cluster.core.state, set(), {}
    while cluster.status not in (RunStatus.COMPLETED, RunStatus.FAILED):
        cluster.happen()
        for name, policy in state.policies.items():
            shared = {state.fleet.leases[lease_id].sharing.engine_lease > 0 for lease_id in policy.placement.gang}
            places.setdefault(name, set()).update(shared)
            if state.outstanding.count_about("accumulate", name) and any(cohort.open for cohort in state.cohorts):
                beside.add(name)
    return beside, places


@pytest.mark.parametrize("mix", ["strict", "batch", "mini-batches", "bounded", "surplus plays on", "ordered"])
@pytest.mark.parametrize("homes", [True, False])
def test_some_trainers_share_devices_and_others_have_their_own(homes, mix):
    cluster = started(mixed(homes, **MIXES[mix]), seed=5)
    beside, places = trained_where(cluster)
    ended_well(cluster)
    assert len({lease.device_id for lease in cluster.core.state.fleet.leases.values()}) == 3
    assert turns(cluster).count("to_trainers") >= cluster.spec.budget.train_steps
    if homes:
        assert places == {"speaker": {True}, "listener": {False}}
    if homes and mix != "batch":
        assert beside == {"listener"}, "who has a device of its own trains while episodes play, the other one never"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spec", [mixed(), mixed(False), gangs()], ids=["homes", "one place", "gangs"])
def test_mixes_and_gangs_lose_nothing_under_faults(spec, seed):
    faults = Faults(twice=0.1, child_death=0.01, lease_end=0.001, uncommitted=0.05, refused=0.02, zombie=0.05,
                    recall=0.002, gang_recall=0.01, episode_failure=0.02)  # fmt: skip
    cluster = started(spec, seed=seed, faults=faults, round_trip=seed % 2 == 0)
    cluster.run()
    assert cluster.status in (RunStatus.COMPLETED, RunStatus.FAILED)


def test_what_nobody_waits_for_turns_no_device():
    """Only the policy with a device of its own has work: engines stay awake while it is trained."""
    homes = {"type": "colocated", "own_devices": 1, "homes": {"speaker": [0], "listener": [1]}}
    spec = make_spec(
        resources__rollout_devices=1, resources__training_devices=2, mechanisms__allocation=homes,
        agents={"speaker": {"trainable": False}, "listener": {}},
    )  # fmt: skip
    assert turns(ended_well(started(spec, seed=2))) == ["to_engines"]


def test_a_gang_is_bound_once_all_its_engines_sleep_and_all_its_ranks_let_go_before_they_wake():
    cluster = ended_well(started(gangs(), seed=3))
    assert [c for c in cluster.commands("bind_policy") if len(c.gang) == 2]
    vacated = {command.lease_id for command in cluster.commands("vacate_trainer")}
    assert vacated == {
        lease.lease_id for lease in cluster.core.state.fleet.leases.values() if lease.sharing.engine_lease
    }
