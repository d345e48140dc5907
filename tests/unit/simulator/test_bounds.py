"""The least step time: by arithmetic, and never above what any simulation takes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import load_presets
from flexmarl.simulator import Scenario, simulate
from flexmarl.simulator.scenarios.library import compose, load_workloads
from flexmarl.simulator.search.bounds import least

MACHINE = {
    "engine": {"token": 0.1, "batch": 4.0, "prefill": 100.0, "slots": 5, "load": 2.0},
    "trainer": {"token": 0.05, "row": 0.0, "micro_batch": 0.5, "step": 3.0, "swap": 1.0, "create": 1.0},
}


def scenario(preset: str = "flexmarl", **changes: object) -> Scenario:
    document = {
        "steps": 2,
        "spec": {
            "agents": {"planner": {}, "worker": {}},
            "environment": {"type": "arithmetic"},
            "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 1},
            "resources": {"rollout_devices": 2, "training_devices": 2, "trainer_policies": 1},
        },
        "workload": {
            "stages": [["planner"], ["worker"]],
            "roles": {"planner": {"prompt": 10, "reply": 20}, "worker": {"prompt": 10, "reply": 40}},
            "environment": 1.0,
        },
        "machine": MACHINE,
    }
    return compose(document, preset, changes)


def near(one: float, other: float) -> bool:
    return abs(one - other) < 1e-9


def test_every_term_is_arithmetic():
    bound = least(scenario())
    # Eight episodes of 60 tokens; five replies at a time take twice as long a step as one, so 0.1 * 2 / 5 s a token.
    assert near(bound.engines, 8 * 60 * 0.04 / 2)
    gradients = {"planner": 0.5 + 160 * 0.05, "worker": 0.5 + 320 * 0.05}
    assert near(bound.trainers, (sum(gradients.values()) + 2 * 3.0) / 2)
    assert near(bound.policy, gradients["worker"] + 3.0)
    alone = 0.1 + 2.0 + 1.0 + 0.1 + 4.0 + 1.0
    assert near(bound.episode, alone)
    # The planner's weights are followed by a whole episode, the worker's by its second half alone.
    assert near(bound.cycle, max(alone + gradients["planner"] + 5.0, 5.1 + gradients["worker"] + 5.0))
    assert near(bound.shared, (8 * 60 * 0.04 + sum(gradients.values()) + 2 * 3.0) / 4)
    assert near(bound.step_s, bound.cycle)
    # Behind a cohort's last reply the planner's last gradient, its step and its load: 5.5 s in which no engine plays.
    assert near(bound.rest, 8 * 60 * 0.04 / 2 + 5.5)
    assert near(bound.turnover, alone + 5.5)
    # All groups settle together, so the planner's gradients come behind that: on its one device, or on all four.
    assert near(bound.own, alone + 160 * 0.05 + 5.5)
    assert near(bound.strict, alone + 160 * 0.05 / 4 + 5.5)
    assert near(bound.free_s, bound.strict)
    # Of four devices two and two: one engine takes 19.2 + 5.5, a single trainer 31.
    assert near(bound.apart, max(19.2 / 2 + 5.5, (sum(gradients.values()) + 6.0) / 2, alone + 160 * 0.05 / 2 + 5.5))


def test_prompts_bind_where_they_take_longer_than_replies():
    long = {"prompt": 1000, "reply": 1}
    bound = least(scenario(workload={"roles": {"planner": long, "worker": long}}))
    assert near(bound.engines, 8 * 2 * 10.0 / 2)


def test_an_older_row_may_be_trained_later():
    strict, bounded = least(scenario()), least(scenario("bounded_async"))
    lag = scenario("bounded_async").spec.mechanisms.lag_policy.bound
    assert near(bounded.episode, strict.episode / (lag + 1))
    assert bounded.cycle == bounded.turnover == bounded.rest == 0.0


def test_wide_devices_do_as_much_as_so_many():
    narrow = least(scenario())
    wide = least(scenario(machine={"width": 2.0}))
    assert wide.engines < narrow.engines
    assert near(wide.policy, 0.5 + 320 * 0.05 / 2 + 3.0)
    assert near(wide.episode, narrow.episode - 2 * 0.05)  # one reply is not made faster by more devices, a prompt is


LOAD = st.fixed_dictionaries(
    {
        "prompt": st.integers(0, 400),
        "reply": st.fixed_dictionaries({"median": st.integers(1, 200), "sigma": st.sampled_from([0.0, 1.0])}),
    }
)


@settings(max_examples=20, deadline=None)
@given(
    preset=st.sampled_from(
        ["sync", "flexmarl", "wavefront", "bounded_async", "one_step_off", "group_stream", "mas_rl"]
    ),
    loads=st.tuples(LOAD, LOAD),
    stages=st.sampled_from(
        [[["planner"], ["worker"]], [["planner", "worker"]], [["planner"], ["worker"], ["planner"]]]
    ),
    devices=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    token=st.sampled_from([0.0, 0.001, 0.1]),
    seed=st.integers(0, 99),
)
def test_no_simulation_is_faster(preset, loads, stages, devices, token, seed):
    own = scenario(
        preset,
        seed=seed,
        spec={"resources": {"rollout_devices": devices[0], "training_devices": min(devices)}},
        workload={"stages": stages, "roles": dict(zip(("planner", "worker"), loads, strict=True))},
        machine={"trainer": {"token": token}},
    )
    bound, report = least(own), simulate(own)
    steps = own.warm_up + own.steps
    assert report.ended >= steps * bound.step_s * (1 - 1e-9)
    assert report.ended >= steps * bound.free_s * (1 - 1e-9)
    if own.spec.mechanisms.allocation.type != "colocated":
        assert report.ended >= steps * bound.apart_s * (1 - 1e-9)


def gives_work_up(one: Scenario) -> bool:
    own = one.spec.mechanisms
    drops = any(one.spec.lag_policy_of(name).at_cut != "wait" for name in one.spec.trainable_policies())
    return own.redundancy.type != "none" or own.policy_clock or drops


@pytest.mark.parametrize("workload", load_workloads())
def test_no_preset_is_faster_than_the_critical_path_of_a_workload(workload: str):
    batch = {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 1, "mini_batches": 2}
    at_once = {"delays": {"start": 0.0}, "trainer": {"create": 0.0}}
    small = {"steps": 1, "warm_up": 0, "spec": {"batch": batch}, "machine": at_once}
    looked_at = 0
    for preset in load_presets():
        try:
            own = compose(workload, preset, small)
        except SpecProblems:
            continue  # engines of this workload have too few places for it
        if gives_work_up(own):
            continue
        bound, report = least(own), simulate(own)
        looked_at += 1
        assert report.ended >= bound.critical_s > 0.0, preset
        assert report.ended >= max(bound.step_s, bound.free_s), preset
        if own.spec.mechanisms.allocation.type != "colocated":
            assert report.ended >= bound.apart_s, preset
    assert looked_at > 15


def test_what_every_episode_begins_with_must_be_back_before_engines_play_again():
    assert near(least(scenario()).rest - least(scenario()).engines, 5.5)
    scaled = least(scenario(workload={"stages": [["worker"], ["planner"]]}, machine={"scale": {"worker": 2.0}}))
    assert near(scaled.rest - scaled.engines, 0.5 + 2 * (3.0 + 2.0))


@pytest.mark.full
@pytest.mark.parametrize("workload", load_workloads())
def test_no_preset_is_faster_than_the_bound_of_the_steps_that_a_report_measures(workload: str):
    """At the size of the workloads, under two seeds, against what any schedule of as many devices takes."""
    looked_at = 0
    for preset in load_presets():
        for seed in range(2):
            try:
                own = compose(workload, preset, {"steps": 3, "seed": seed})
            except SpecProblems:
                continue
            bound = least(own, measured=True)
            if gives_work_up(own) or not bound.strict:
                continue
            looked_at += 1
            assert simulate(own).step_s >= max(bound.free_s, bound.step_s), (preset, seed)
    assert looked_at > 20
