"""A search: only candidates, the same for the same seed, and never worse than what it is searched against."""

from flexmarl.contracts.resolve import load_presets
from flexmarl.simulator import SimulationError, simulate
from flexmarl.simulator.searching import Candidate, search, space

DOCUMENT = {
    "spec": {
        "agents": {"planner": {}, "worker": {}},
        "environment": {"type": "arithmetic"},
        "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 1},
        "resources": {"rollout_devices": 4, "training_devices": 2},
    },
    "workload": {"stages": [["planner"], ["worker"]], "each": {"prompt": 8, "reply": {"median": 100, "sigma": 1.0}}},
}


def play(scenarios):
    found = []
    for one in scenarios:
        try:
            found.append(simulate(one))
        except SimulationError:
            found.append(None)
    return found


def test_what_is_found_has_the_same_devices_and_trains_as_much():
    within = space(DOCUMENT, "flexmarl", ["flexmarl", "sync", "wavefront"], 0)
    found = search(within, 8, 3, play)
    again = search(within, 8, 3, play)
    assert [one.candidate for one in found] == [one.candidate for one in again]
    over = simulate(within.made(Candidate("flexmarl"), found[0].scenario.steps))
    assert found[0].report.step_s <= over.step_s
    for one in found:
        resources = one.scenario.spec.resources
        assert resources.rollout_devices + resources.training_devices == 6
        assert all(one.scenario.spec.lag_policy_of(name).bound == 0 for name in ("planner", "worker"))
        assert one.report.length_ratio >= 0.98
        assert one.report.tokens >= 0.98 * over.tokens


def test_what_rules_refuse_or_is_too_old_is_no_candidate():
    within = space(DOCUMENT, "flexmarl", load_presets(), 0)
    assert within.made(Candidate("bounded_async"), 1) is None
    assert within.made(Candidate("flexmarl", {"spec.batch.micro_batch_groups": 16}), 1) is None
    assert within.made(Candidate("flexmarl", {"spec.mechanisms.publication.type": "wavefront"}), 1) is not None
    assert space(DOCUMENT, "flexmarl", load_presets(), 2).made(Candidate("one_step_off"), 1) is not None


def test_what_trains_less_per_step_is_no_gain():
    within = space(DOCUMENT | {"spec": DOCUMENT["spec"] | {"batch": DOCUMENT["spec"]["batch"] | {"min_rows": 4}}},
                   "flexmarl", ["flexmarl", "policy_clock"], 0)  # fmt: skip
    kept = [one.candidate.preset for one in search(within, 2, 0, play)]
    clocked = Candidate("policy_clock", {"spec.batch.min_rows": 4})
    dropping, whole = play([within.made(clocked, 4), within.made(Candidate("flexmarl"), 4)])
    assert dropping.tokens < 0.98 * whole.tokens
    assert "policy_clock" not in kept
