"""A search: only candidates, the same for the same seed, never worse than what it is searched against, and it finds."""

from types import SimpleNamespace

import pytest

from flexmarl.contracts.resolve import load_presets
from flexmarl.simulator import SimulationError, simulate
from flexmarl.simulator.search.axes import LAYOUT, balanced, by_work, devices
from flexmarl.simulator.search.candidates import Candidate, FoundCandidate, space
from flexmarl.simulator.search.searching import SEEDS, _Hunt, against, search

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
    within = space(DOCUMENT, "flexmarl", ["flexmarl", "wavefront"], 0)
    found = search(within, 3, 3, play)
    over = against(within, found[0], SEEDS, play).over
    assert found[0].step_s <= over.step_s
    assert len(found[0].reports) == len(SEEDS) >= 3
    assert found[0].scenario.steps >= 4
    for one in found:
        resources = one.scenario.spec.resources
        assert resources.rollout_devices + resources.training_devices == 6
        assert all(one.scenario.spec.lag_policy_of(name).bound == 0 for name in ("planner", "worker"))
        assert min(report.length_ratio for report in one.reports) >= 0.98
        assert one.reports[0].tokens >= 0.98 * over.reports[0].tokens


def delta_of(spec) -> float:
    """Return the mover's delta, as it comes where there is none."""
    return getattr(spec.mechanisms.mover, "delta", 5.0)


def planted(spec) -> float:
    """Return seconds that are fewest where two gangs, a limit, a number and a word are as nobody would guess."""
    gangs = [spec.policies[name].devices.most for name in ("planner", "worker")]
    episodes, delta = spec.mechanisms.parallel.episodes or 8, delta_of(spec)
    return (
        10.0 + 3.0 * abs(gangs[0] - 1) + 3.0 * abs(gangs[1] - 4)
        + 20.0 * (spec.resources.training_devices != sum(gangs))
        + abs(episodes - 16) / 16 + abs(delta - 30.0) / 30 + 2.0 * (spec.mechanisms.publication.type != "wavefront")
    )  # fmt: skip


def pretend(scenarios):
    return [SimpleNamespace(step_s=planted(one.spec), tokens=1, length_ratio=1.0) for one in scenarios]


def planted_pair(spec) -> float:
    """Return seconds that get fewer only where two settings change at once."""
    both = spec.mechanisms.router.type == "length_aware", spec.mechanisms.publication.type == "wavefront"
    return 20.0 - 10.0 * all(both) + 5.0 * (any(both) and not all(both)) + len(spec.model_dump_json()) * 1e-6


def test_an_optimum_that_was_planted_is_found_again_and_again():
    within = space(DOCUMENT | {"spec": DOCUMENT["spec"] | {"resources": {"rollout_devices": 8, "training_devices": 4}}},
                   "flexmarl", ["flexmarl"], 0)  # fmt: skip
    found, again = (search(within, 120, 5, pretend)[0] for _ in range(2))
    assert found.candidate == again.candidate
    assert planted(within.made(Candidate("flexmarl")).spec) > 20.0
    assert found.step_s < 10.5
    spec = found.scenario.spec
    assert (spec.resources.rollout_devices, spec.policies["worker"].devices.most) == (7, 4)
    assert spec.mechanisms.publication.type == "wavefront"


def test_two_settings_that_gain_only_together_are_found():
    within = space(DOCUMENT, "flexmarl", ["flexmarl"], 0)

    def paired(scenarios):
        return [SimpleNamespace(step_s=planted_pair(one.spec), tokens=1, length_ratio=1.0) for one in scenarios]

    assert search(within, 90, 1, paired)[0].step_s < 11.0


def test_numbers_that_gain_most_together_are_found_beside_a_word_that_ends_them():
    """A limit and a delta gain 6 and 8 s alone and 30 together; without a mover, which gains 7, no delta counts."""
    within = space(DOCUMENT, "flexmarl", ["flexmarl"], 0)

    def together(scenarios):
        found = []
        for one in scenarios:
            own = one.spec.mechanisms
            few, still = (own.parallel.episodes or 8) <= 2, own.mover.type == "static"
            far = delta_of(one.spec) >= 20.0 and not still
            seconds = 70.0 - (30.0 if few and far else max(6.0 * few, 8.0 * far, 7.0 * still))
            seconds += len(one.spec.model_dump_json()) * 1e-6
            found.append(SimpleNamespace(step_s=seconds, tokens=1, length_ratio=1.0))
        return found

    for seed in range(3):
        told: list[float] = []
        search(within, 36, seed, together, lambda number, one, told=told: told.append(one.first_s))
        assert min(told) < 41.0


def test_whoever_was_lucky_under_one_seed_leads_nobody():
    """Without a mover a step takes 6 s under the first seed and 30 s under others; with it, 20 s at most."""
    within = space(DOCUMENT, "flexmarl", ["flexmarl"], 0)

    def lucky(scenarios):
        found = []
        for one in scenarios:
            own = one.spec.mechanisms.mover
            seconds = 19.0 + delta_of(one.spec) / 100.0 + len(one.spec.model_dump_json()) * 1e-6
            seconds = seconds if own.type == "demand" else 30.0 if one.seed else 6.0
            found.append(SimpleNamespace(step_s=seconds, tokens=1, length_ratio=1.0))
        return found

    tried = []
    best = search(within, 60, 0, lucky, lambda number, one: tried.append(one.scenario.spec.mechanisms.mover))[0]
    assert best.scenario.spec.mechanisms.mover.type == "demand"
    assert best.step_s < 20.0
    assert sum(own.type == "static" for own in tried) < len(tried) / 3


def test_steps_that_gained_alone_are_gone_together():
    """Seven words gain 10 s each: one after the other they take seven rounds of six trials, after eight by chance."""
    within = space(DOCUMENT, "flexmarl", ["flexmarl"], 0)

    def summed(scenarios):
        found = []
        for one in scenarios:
            own = one.spec.mechanisms
            good = [
                own.publication.type == "wavefront",
                own.trainer_protocol == "per_group",
                own.mover.type == "static",
                own.router.type == "version_aware",
                own.allocation.type == "static",
                getattr(own.redundancy, "extra", 0) == 4,
            ]
            seconds = 100.0 - 10.0 * sum([*good, own.parallel.members == 1])
            found.append(SimpleNamespace(step_s=seconds, tokens=1, length_ratio=1.0))
        return found

    told = []
    search(within, 60, 0, summed, lambda number, one: told.append(one.step_s))
    assert told.index(30.0) < 45


WORDS = {
    "mechanisms.publication.type": "wavefront",
    "mechanisms.trainer_protocol": "per_group",
    "mechanisms.router.type": "version_aware",
    "mechanisms.mover.type": "static",
}
"""Four steps that make a difference beside each other."""


def hunting(own):
    """Return a search in which every step takes 20 s, its leader, and four steps from it."""
    within = space(DOCUMENT, "flexmarl", ["flexmarl"], 0)
    hunt = _Hunt(within, 60, 0, lambda made: [timed(20.0) for _ in made], lambda number, one: None)
    leader = FoundCandidate(Candidate("flexmarl"), within.made(Candidate("flexmarl")), own)
    near = {step.path: step for step in within.near(leader) if WORDS.get(step.path) == step.value}
    return hunt, leader, [near[path] for path in WORDS]


def timed(seconds: float) -> SimpleNamespace:
    return SimpleNamespace(step_s=seconds, tokens=1, length_ratio=1.0)


def test_a_gain_is_over_the_mean_of_a_leader_that_was_lucky_once():
    hunt, leader, steps = hunting((timed(10.0), timed(30.0), timed(35.0)))
    hunt._go(leader, steps, [])
    assert hunt._gains == {step.name: pytest.approx(1.0 - 20.0 / 25.0) for step in steps}


def test_of_steps_in_twos_those_come_first_whose_gains_are_largest_together():
    hunt, leader, steps = hunting((timed(20.0),) * 3)
    hunt._gains = {step.name: gain for step, gain in zip(steps, (0.1, 0.4, 0.5, 0.45), strict=True)}
    wave, group, version, still = ({step.path: step.value} for step in steps)
    several = [one.chosen for one in hunt._together(leader, steps, 7)]
    assert several == [
        wave | group | version | still,
        version | still, version | group, still | group, version | wave, still | wave, group | wave,
    ]  # fmt: skip


def test_every_trial_is_told_of_and_none_is_tried_twice():
    within = space(DOCUMENT, "flexmarl", ["flexmarl", "group_stream", "wavefront"], 0)
    told, played = [], []

    def noted(scenarios):
        played.extend(one.spec.model_dump_json() for one in scenarios if (one.seed, one.steps) == (0, 1))
        return pretend(scenarios)

    search(within, 20, 0, noted, lambda number, one: told.append((number, one)))
    assert [number for number, _ in told] == list(range(1, 21))
    assert len({*played}) == len(played) == 20
    assert "wavefront" in {one.scenario.spec.mechanisms.publication.type for _, one in told}


def test_what_rules_refuse_or_is_too_old_is_no_candidate():
    within = space(DOCUMENT, "flexmarl", load_presets(), 0)
    assert within.made(Candidate("bounded_async")) is None
    assert within.made(Candidate("flexmarl", {"batch.micro_batch_groups": 16})) is None
    assert within.made(Candidate("flexmarl", {"mechanisms.publication.type": "wavefront"})) is not None
    assert space(DOCUMENT, "flexmarl", load_presets(), 2).made(Candidate("one_step_off")) is not None


def test_what_has_other_devices_is_no_candidate():
    within = space(DOCUMENT, "flexmarl", ["flexmarl"], 0)
    more = {"resources": {"rollout_devices": 5, "training_devices": 2}}
    assert within.made(Candidate("flexmarl", {LAYOUT: more})) is None


@pytest.mark.parametrize("less", [{"tokens": 97}, {"length_ratio": 0.97}])
def test_what_trains_less_per_step_or_shorter_replies_is_no_gain(less: dict[str, float]):
    within = space(DOCUMENT, "flexmarl", ["group_stream", "wavefront"], 0)

    def biased(scenarios):
        whole = {"step_s": 10.0, "tokens": 100, "length_ratio": 1.0}
        given = [one.spec.mechanisms.trainer_protocol == "per_group" for one in scenarios]
        return [SimpleNamespace(**whole | ({"step_s": 5.0} | less if own else {})) for own in given]

    found = search(within, 20, 0, biased)
    assert found
    assert all(one.scenario.spec.mechanisms.trainer_protocol != "per_group" for one in found)


def test_devices_are_shared_out_as_the_work_is():
    assert by_work(7, {"hub": 110.0, "first": 20.0, "second": 19.0}) == {"first": 1, "hub": 5, "second": 1}
    spec = space(DOCUMENT, "flexmarl", ["flexmarl"], 0).made(Candidate("flexmarl")).spec
    layout = balanced(spec, 24, {"planner": 60.0, "worker": 20.0}, 400.0)
    # Four trainers take 60 / 3 and 20 / 1, twenty engines 400 / 20.
    assert layout["resources"] == {"rollout_devices": 20, "training_devices": 4}
    assert layout["policies"]["planner"]["devices"] == {"least": 3, "most": 3}


@pytest.mark.parametrize("preset", ["flexmarl", "best_on_policy", "rollpacker"])
def test_one_step_away_is_another_candidate_with_all_devices(preset: str):
    within = space(DOCUMENT, "flexmarl", [preset], 0)
    start = SimpleNamespace(candidate=Candidate(preset), scenario=within.made(Candidate(preset)))
    made = {(step.path, step.called): within.made(step.candidate) for step in within.near(start)}
    legal = {step: one for step, one in made.items() if one is not None}
    paths = {path for path, _ in legal}
    assert paths >= {LAYOUT, "mechanisms.mover.type", "mechanisms.publication.type"}
    assert all(devices(one.spec) == 6 for one in legal.values())
    if start.scenario.spec.mechanisms.mover.type == "static":
        assert "mechanisms.mover.delta" not in paths, "nobody would read it"
        return
    delta = start.scenario.spec.mechanisms.mover.delta
    steps = [(called, one) for (path, called), one in legal.items() if path == "mechanisms.mover.delta"]
    assert {one.spec.mechanisms.mover.delta for _, one in steps} == {delta / 2.0, delta * 2.0}
    assert all(float(called) == one.spec.mechanisms.mover.delta for called, one in steps)


def test_no_preset_gains_by_devices_that_hold_more_policies():
    """`rlinf_hybrid` states engines that hold all policies; where engines hold one, it plays with one as well."""
    one = {"resources": {"rollout_devices": 4, "training_devices": 2, "engine_policies": 1, "trainer_policies": 1}}
    within = space(DOCUMENT | {"spec": DOCUMENT["spec"] | one}, "flexmarl", load_presets(), 0)
    assert load_presets()["rlinf_hybrid"].spec["resources"]["engine_policies"] is None
    made = [found for candidate in within.first() if (found := within.made(candidate)) is not None]
    assert len(made) > 5
    assert {own.spec.resources.engine_policies for own in made} == {1}
    static = {"mechanisms.allocation.type": "static", LAYOUT: balanced(made[0].spec, 6, within.work.trained, 1.0)}
    found = within.made(Candidate("rlinf_hybrid", static))
    assert found is not None
    assert found.spec.resources.engine_policies == 1
