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
from flexmarl.simulator.laws import Watch, broken
from flexmarl.simulator.library import compose, load_workloads
from flexmarl.simulator.runs import alone, long_enough
from flexmarl.simulator.scenario import Scenario

FAULTS = {
    "node_devices": 2, "nodes": [{"at": 90, "node": 0}], "declare": 10, "replace": 20,
    "rates": [{"use": "engine", "every": 200}, {"use": "trainer", "every": 150}],
    "workers": [{"at": 40, "share": 0.5}],
}  # fmt: skip
BATCH = {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 1, "mini_batches": 2}


def played(scenario: Scenario, steps: int) -> Watch:
    """Play until the run made its steps, ended, or has nothing left to do."""
    cluster = alone(long_enough(scenario))
    watch = Watch.over(cluster)
    while len(cluster.log.stepped) < steps and not cluster.driver.ended and cluster.clock.play():
        pass
    return watch


CORE = ("active_partial", "bounded_async", "flexmarl", "one_step_off", "policy_clock", "sync", "wavefront")
"""Presets that differ in what the core does; the others combine the same options, and are spared the long one."""
CASES = [(p, w) for p in load_presets() for w in load_workloads() if w != "hub" or p in CORE]


@pytest.mark.parametrize(("preset", "workload"), CASES)
def test_laws_hold_for_every_preset_and_workload(preset: str, workload: str):
    changes = {"steps": 2, "warm_up": 0, "faults": FAULTS, "spec": {"batch": BATCH}}
    watch = played(compose(workload, preset, changes), 2)
    assert not broken(watch)
    assert len(watch.cluster.log.stepped) == 2, watch.cluster.driver.ended


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


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    preset=st.sampled_from(sorted(load_presets())),
    faults=losses,
    seed=st.integers(0, 1000),
    failure=st.sampled_from([0.0, 0.3]),
    reply=st.sampled_from([20, {"median": 300, "sigma": 1.0}]),
    mechanisms=st.sampled_from(
        [
            {},
            {"redundancy": {"type": "extra_members", "extra": 1}},
            {"redundancy": {"type": "extra_environments", "extra": 1}},
            {"parallel": {"episodes": 3, "members": 1}},
            {"allocation": "colocated"},
        ]
    ),
)
def test_laws_hold_by_chance(
    preset: str, faults: dict[str, Any], seed: int, failure: float, reply: Any, mechanisms: dict[str, Any]
):
    asked = {"stages": [["planner", "critic"], ["critic"]], "each": {"prompt": 50, "reply": reply}, "failure": failure,
             "environment": {"mean": 2, "sigma": 1}, "rounds": 2}  # fmt: skip
    team = {"agents": {"planner": {}, "critic": {}}, "environment": {"type": "arithmetic"}, "batch": BATCH,
            "resources": {"rollout_devices": 2, "training_devices": 2, "trainer_policies": 1}}  # fmt: skip
    changes = {"steps": 2, "warm_up": 0, "seed": seed, "faults": faults, "spec": {"mechanisms": mechanisms}}
    try:
        made = compose({"spec": team, "workload": asked}, preset, changes)
    except SpecProblems:
        reject()  # a preset that does not go with a mechanism
    assert not broken(played(made, 2))


def told_twice(watch: Watch) -> None:
    watch.facts.append(next((now, fact) for now, fact in watch.facts if isinstance(fact, e.GroupSettled)))


def group_forgotten(watch: Watch) -> None:
    watch.facts.remove(next((now, fact) for now, fact in watch.facts if isinstance(fact, e.GroupSettled)))


def answered_by_the_future(watch: Watch) -> None:
    at, (now, fact) = next((i, p) for i, p in enumerate(watch.facts) if isinstance(p[1], e.GroupSettled))
    outcome = fact.episodes[0]
    row = outcome.samples[0]
    newer = row.model_copy(update={"segments": (7, row.tokens)})
    other = outcome.model_copy(update={"samples": (newer, *outcome.samples[1:])})
    watch.facts[at] = now, fact.model_copy(update={"episodes": (other, *fact.episodes[1:])})


def cut_twice(watch: Watch) -> None:
    no, numbered = next((n, o) for n, o in watch.commands.items() if isinstance(o.command, c.CutMicroBatch))
    other = numbered.command.model_copy(update={"ref": numbered.command.ref.model_copy(update={"no": 99})})
    watch.commands[-no] = type(numbered)(-no, 1, other)


def stepped_twice(watch: Watch) -> None:
    watch.facts.append(next((now, fact) for now, fact in watch.facts if isinstance(fact, e.StepCommitted)))


def load_forgotten(watch: Watch) -> None:
    watch.facts.remove(next((now, fact) for now, fact in watch.facts if isinstance(fact, e.WeightsServed)))


def device_leased_twice(watch: Watch) -> None:
    first, second, *_ = watch.cluster.trace.held.values()
    second.device_id = first.device_id


def worked_for_nobody(watch: Watch) -> None:
    held = next(iter(watch.cluster.trace.held.values()))
    held.until = held.since + 1.0


def tokens_from_nowhere(watch: Watch) -> None:
    watch.cluster.hosting.gone_made += 5.0


def turn_left_out(watch: Watch) -> None:
    at, (now, fact) = next((i, p) for i, p in enumerate(watch.facts) if isinstance(p[1], e.GroupSettled))
    outcome = fact.episodes[0]
    row = outcome.samples[0].model_copy(update={"turn": 1})
    other = outcome.model_copy(update={"samples": (row, *outcome.samples[1:])})
    watch.facts[at] = now, fact.model_copy(update={"episodes": (other, *fact.episodes[1:])})


def kept_beside_newer(watch: Watch) -> None:
    watch.facts.remove(next((now, fact) for now, fact in watch.facts if isinstance(fact, e.PolicyUnloaded)))


@pytest.mark.parametrize(
    ("tamper", "law"),
    [
        (told_twice, "groups_settle_once"),
        (group_forgotten, "rows_are_conserved"),
        (answered_by_the_future, "versions_are_allowed"),
        (cut_twice, "rows_are_conserved"),
        (stepped_twice, "micro_batches_are_trained_once"),
        (load_forgotten, "commands_are_carried_out_or_void"),
        (device_leased_twice, "devices_have_one_lease"),
        (worked_for_nobody, "device_time_adds_up"),
        (tokens_from_nowhere, "tokens_are_conserved"),
        (turn_left_out, "answered_turns_are_told_once"),
        (kept_beside_newer, "engines_hold_one_version"),
    ],
)
def test_what_breaks_a_law_is_found(tamper: Callable[[Watch], None], law: str):
    changes = {"steps": 2, "warm_up": 0, "spec": {"batch": BATCH}}
    preset = "laminar" if tamper is kept_beside_newer else "flexmarl"
    watch = played(compose("long_tail", preset, changes), 2)
    assert not broken(watch)
    tamper(watch)
    assert law in [one.law for one in broken(watch)]
