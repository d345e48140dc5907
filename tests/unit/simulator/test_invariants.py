"""What must hold of every simulation: of presets, workloads and chance scenarios with faults; and that it is seen."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import load_presets
from flexmarl.simulator.reporting.invariants import broken
from flexmarl.simulator.reporting.watching import RunWatch
from flexmarl.simulator.runs import alone, long_enough
from flexmarl.simulator.scenarios.library import compose, load_workloads
from flexmarl.simulator.scenarios.scenario import Scenario

FAULTS = {
    "node_devices": 2, "nodes": [{"at": 90, "node": 0}], "declare": 10, "replace": 20,
    "rates": [{"use": "engine", "every": 200}, {"use": "trainer", "every": 150}],
    "workers": [{"at": 40, "share": 0.5}],
}  # fmt: skip
BATCH = {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 1, "mini_batches": 2}


def played(scenario: Scenario, steps: int) -> RunWatch:
    """Play until the run made its steps, ended, or has nothing left to do."""
    cluster = alone(long_enough(scenario))
    watch = RunWatch.over(cluster)
    while len(cluster.log.stepped) < steps and not cluster.driver.ended and cluster.clock.play():
        pass
    return watch


CORE = ("active_partial", "bounded_async", "flexmarl", "one_step_off", "policy_clock", "sync", "wavefront")
"""Presets that differ in what the core does; the others combine the same options, and are spared the long one."""
CASES = [(p, w) for p in load_presets() for w in load_workloads() if w != "hub" or p in CORE]


@pytest.mark.parametrize(("preset", "workload"), CASES)
def test_invariants_hold_for_every_preset_and_workload(preset: str, workload: str):
    changes = {"steps": 2, "warm_up": 0, "faults": FAULTS, "spec": {"batch": BATCH}}
    watch = played(compose(workload, preset, changes), 2)
    assert not broken(watch)
    assert len(watch.cluster.log.stepped) == 2, watch.cluster.driver.ended


@pytest.mark.parametrize("preset", ["flexmarl", "bounded_async"])
def test_invariants_hold_where_rows_are_trained_again(preset: str):
    spec = {
        "batch": {"tasks_per_step": 4, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 1},
        "sampling": {"replay": {"type": "archive", "share": 0.5}},
        "algorithm": {"loss": {"type": "ppo_clip"}},
    }
    watch = played(compose(sorted(load_workloads())[0], preset, {"steps": 4, "warm_up": 0, "spec": spec}), 4)
    assert not broken(watch)
    cuts = [n.command for n in watch.commands.values() if isinstance(n.command, c.CutMicroBatch)]
    assert any(cut.replayed for cut in cuts)


losses = st.fixed_dictionaries(
    {},
    optional={
        "children": st.lists(
            st.fixed_dictionaries({"at": st.integers(0, 120), "device": st.integers(0, 2)}), max_size=3
        ),
        "nodes": st.lists(
            st.fixed_dictionaries(
                {"at": st.integers(0, 120), "node": st.just(0), "back": st.one_of(st.none(), st.integers(0, 60))}
            ),
            max_size=1,
        ),
        "slow": st.lists(
            st.fixed_dictionaries({"device": st.integers(0, 2), "factor": st.floats(0.5, 4.0)}), max_size=2
        ),
        "spot": st.lists(
            st.fixed_dictionaries({"at": st.integers(0, 120), "devices": st.integers(0, 2)}), max_size=3
        ),
        "workers": st.lists(st.fixed_dictionaries({"at": st.integers(0, 120)}), max_size=2),
        "replace": st.just(15), "declare": st.integers(0, 20), "notice": st.integers(0, 10),
    },
)  # fmt: skip


TEAM = {"agents": {"planner": {}, "critic": {}}, "environment": {"type": "arithmetic"}, "batch": BATCH,
        "resources": {"rollout_devices": 2, "training_devices": 2, "trainer_policies": 1}}  # fmt: skip
MECHANISMS = [
    {},
    {"redundancy": {"type": "extra_members", "extra": 1}},
    {"redundancy": {"type": "extra_environments", "extra": 1}},
    {"parallel": {"episodes": 3, "members": 1}},
    {"allocation": "colocated"},
]
chances = {
    "faults": losses,
    "seed": st.integers(0, 1000),
    "failure": st.sampled_from([0.0, 0.3]),
    "reply": st.sampled_from([20, {"median": 300, "sigma": 1.0}]),
    "mechanisms": st.sampled_from(MECHANISMS),
}


def by_chance(preset: str, given: dict[str, Any], **more: Any) -> Scenario:
    """Two agents, one of which is asked twice a round; rejected where a preset does not go with a mechanism."""
    load = {"stages": [["planner", "critic"], ["critic"]], "each": {"prompt": 50, "reply": given["reply"]},
            "failure": given["failure"], "environment": {"mean": 2, "sigma": 1}, "rounds": 2}  # fmt: skip
    changes = {"steps": 2, "warm_up": 0, "seed": given["seed"], "faults": given["faults"],
               "spec": {"mechanisms": given["mechanisms"]}} | more  # fmt: skip
    try:
        return compose({"spec": TEAM, "workload": load}, preset, changes)
    except SpecProblems:
        reject()


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(preset=st.sampled_from(sorted(load_presets())), given_=st.fixed_dictionaries(chances))
def test_invariants_hold_by_chance(preset: str, given_: dict[str, Any]):
    assert not broken(played(by_chance(preset, given_), 2))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    preset=st.sampled_from(["sync", "flexmarl", "one_step_off", "marti", "mas_rl", "wavefront", "streamrl_sync"]),
    given_=st.fixed_dictionaries(chances),
    tick=st.sampled_from([0.1, 1.0, 7.0]),
    engine=st.sampled_from([{}, {"slots": 1}, {"kv_tokens": 700.0, "replicas": 2}, {"slots": 2, "cell": 1e-5}]),
)
def test_invariants_hold_by_chance_over_whole_episodes(
    preset: str, given_: dict[str, Any], tick: float, engine: dict[str, Any]
):
    whole = {"granularity": "episode", "tick": tick, "machine": {"engine": engine, "scale": {"critic": 1.5}}}
    assert not broken(played(by_chance(preset, given_, **whole), 2))


def told_twice(watch: RunWatch) -> None:
    watch.facts.append(next((now, fact) for now, fact in watch.facts if isinstance(fact, e.GroupSettled)))


def group_forgotten(watch: RunWatch) -> None:
    watch.facts.remove(next((now, fact) for now, fact in watch.facts if isinstance(fact, e.GroupSettled)))


def answered_by_the_future(watch: RunWatch) -> None:
    at, (now, fact) = next((i, p) for i, p in enumerate(watch.facts) if isinstance(p[1], e.GroupSettled))
    outcome = fact.episodes[0]
    row = outcome.samples[0]
    newer = row.model_copy(update={"segments": (7, row.tokens)})
    other = outcome.model_copy(update={"samples": (newer, *outcome.samples[1:])})
    watch.facts[at] = now, fact.model_copy(update={"episodes": (other, *fact.episodes[1:])})


def cut_twice(watch: RunWatch) -> None:
    no, numbered = next((n, o) for n, o in watch.commands.items() if isinstance(o.command, c.CutMicroBatch))
    other = numbered.command.model_copy(update={"ref": numbered.command.ref.model_copy(update={"no": 99})})
    watch.commands[-no] = type(numbered)(-no, 1, other)


def stepped_twice(watch: RunWatch) -> None:
    watch.facts.append(next((now, fact) for now, fact in watch.facts if isinstance(fact, e.StepCommitted)))


def cut_for(watch: RunWatch, cohort: int, other: int) -> None:
    """Say of what was cut for one cohort that it was for another."""
    for no, numbered in list(watch.commands.items()):
        if isinstance(numbered.command, c.CutMicroBatch) and numbered.command.cohort == cohort:
            moved = numbered.command.model_copy(update={"cohort": other})
            watch.commands[no] = type(numbered)(no, numbered.epoch, moved)


def trained_a_step_early(watch: RunWatch) -> None:
    cut_for(watch, 1, 0)


def step_left_empty(watch: RunWatch) -> None:
    cut_for(watch, 0, 5)


def load_forgotten(watch: RunWatch) -> None:
    watch.facts.remove(next((now, fact) for now, fact in watch.facts if isinstance(fact, e.WeightsServed)))


def device_leased_twice(watch: RunWatch) -> None:
    first, second, *_ = watch.cluster.trace.held.values()
    second.device_id = first.device_id


def worked_for_nobody(watch: RunWatch) -> None:
    held = next(iter(watch.cluster.trace.held.values()))
    held.until = held.since + 1.0


def tokens_from_nowhere(watch: RunWatch) -> None:
    watch.cluster.hosting.gone_made += 5.0


def turn_left_out(watch: RunWatch) -> None:
    at, (now, fact) = next((i, p) for i, p in enumerate(watch.facts) if isinstance(p[1], e.GroupSettled))
    outcome = fact.episodes[0]
    row = outcome.samples[0].model_copy(update={"turn": 1})
    other = outcome.model_copy(update={"samples": (row, *outcome.samples[1:])})
    watch.facts[at] = now, fact.model_copy(update={"episodes": (other, *fact.episodes[1:])})


def kept_beside_newer(watch: RunWatch) -> None:
    watch.facts.remove(next((now, fact) for now, fact in watch.facts if isinstance(fact, e.PolicyUnloaded)))


def row_left_out(watch: RunWatch) -> None:
    at, (now, fact) = next((i, p) for i, p in enumerate(watch.facts) if isinstance(p[1], e.GroupSettled))
    other = fact.episodes[0].model_copy(update={"samples": ()})
    watch.facts[at] = now, fact.model_copy(update={"episodes": (other, *fact.episodes[1:])})


def finished_at_once(watch: RunWatch) -> None:
    at, (now, fact) = next((i, p) for i, p in enumerate(watch.facts) if isinstance(p[1], e.GroupSettled))
    other = fact.episodes[0].model_copy(update={"duration_s": 0.01})
    watch.facts[at] = now, fact.model_copy(update={"episodes": (other, *fact.episodes[1:])})


def slot_not_given_back(watch: RunWatch) -> None:
    next(iter(watch.cluster.playing.engines.values())).load.running += 1


def slot_of_nobody(watch: RunWatch) -> None:
    watch.cluster.playing._pools._taken[0] += 1.0


def tokens_told_twice(watch: RunWatch) -> None:
    watch.episodes.append(next(one for one in watch.episodes if one.rows))


@pytest.mark.parametrize(
    ("tamper", "invariant"),
    [
        (tokens_told_twice, "tokens_are_conserved"),
        (turn_left_out, "answered_turns_are_told_once"),
        (row_left_out, "answered_turns_are_told_once"),
        (finished_at_once, "episodes_take_their_time"),
        (slot_of_nobody, "slots_are_those_of_turns"),
    ],
)
def test_what_breaks_a_law_of_whole_episodes_is_found(tamper: Callable[[RunWatch], None], invariant: str):
    changes = {"steps": 2, "warm_up": 0, "spec": {"batch": BATCH}, "granularity": "episode"}
    watch = played(compose("long_tail", "flexmarl", changes), 2)
    assert not broken(watch)
    tamper(watch)
    assert invariant in [one.invariant for one in broken(watch)]


def made_long_before(watch: RunWatch) -> None:
    """Let what the last step trained have been made by the first weights."""
    for _, fact in watch.facts:
        if isinstance(fact, e.GroupSettled):
            order = watch.commands[fact.command_no]
            pins = {name: pin.model_copy(update={"version": 0}) for name, pin in order.command.pins.items()}
            older = order.command.model_copy(update={"pins": pins})
            watch.commands[order.no] = type(order)(order.no, order.epoch, older)


@pytest.mark.parametrize(
    ("tamper", "invariant"),
    [
        (told_twice, "groups_settle_once"),
        (group_forgotten, "rows_are_conserved"),
        (answered_by_the_future, "versions_are_allowed"),
        (cut_twice, "rows_are_conserved"),
        (made_long_before, "rows_are_within_their_bound"),
        (trained_a_step_early, "steps_train_their_groups"),
        (step_left_empty, "steps_train_their_groups"),
        (stepped_twice, "micro_batches_are_trained_once"),
        (load_forgotten, "commands_are_carried_out_or_void"),
        (device_leased_twice, "devices_have_one_lease"),
        (worked_for_nobody, "device_time_adds_up"),
        (tokens_from_nowhere, "tokens_are_conserved"),
        (turn_left_out, "answered_turns_are_told_once"),
        (kept_beside_newer, "engines_hold_one_version"),
        (row_left_out, "answered_turns_are_told_once"),
        (finished_at_once, "episodes_take_their_time"),
        (slot_not_given_back, "slots_are_those_of_turns"),
    ],
)
def test_what_breaks_a_law_is_found(tamper: Callable[[RunWatch], None], invariant: str):
    changes = {"steps": 2, "warm_up": 0, "spec": {"batch": BATCH}}
    preset = "laminar" if tamper is kept_beside_newer else "flexmarl"
    watch = played(compose("long_tail", preset, changes), 2)
    assert not broken(watch)
    tamper(watch)
    assert invariant in [one.invariant for one in broken(watch)]
