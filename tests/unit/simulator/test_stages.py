"""Rewards that wait for one another, what routers are told of replies to come, and placements that come true."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from flexmarl.algorithms.placement import Stage
from flexmarl.contracts.resolve import layered
from flexmarl.simulator import simulate
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.expected_lengths import noise
from flexmarl.simulator.prediction.placing import Kind, cohort_work, place, profile
from flexmarl.simulator.rollout.groups import Episode
from flexmarl.simulator.rollout.scoring import Scoring
from flexmarl.simulator.scenarios import chance
from flexmarl.simulator.scenarios.library import compose
from flexmarl.simulator.scenarios.scenario import Ranker, RoleLoad, Spread, Workload

SPEC = {
    "agents": {"solver": {}},
    "environment": {"type": "arithmetic"},
    "batch": {"tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 4},
}
TAIL = {"median": 1000, "sigma": 1.0, "least": 16, "most": 8000}


def document(reply: object = 500, **changes: Any) -> dict[str, Any]:
    return layered(
        {"spec": SPEC, "workload": {"stages": [["solver"]], "each": {"prompt": 64, "reply": reply}}}, changes
    )


def scored(workload: Workload, ends: list[float]) -> list[float]:
    """Return when episodes of 10 tokens have their rewards that play until these moments."""
    clock, found = Clock(), []
    scoring = Scoring(clock, workload)
    for end in ends:
        episode = cast("Episode", SimpleNamespace(script=SimpleNamespace(reward_s=1.0), answered=lambda: 10))
        scoring.begun(episode)
        clock.at(end, lambda one: scoring.score(clock.now, lambda _: found.append(clock.now), one), episode)
    while clock.play():
        pass
    return found


def test_scorers_work_on_so_many_episodes_and_stages_wait_for_each_other():
    stages = {"stages": (("solver",),), "reward_token": 0.3}  # 1 + 10 * 0.3 s each
    assert scored(Workload(**stages), [0.0, 1.0, 2.0]) == pytest.approx([4.0, 5.0, 6.0])
    assert scored(Workload(**stages, scorers=1), [0.0, 1.0, 2.0]) == pytest.approx([4.0, 8.0, 12.0])
    assert scored(Workload(**stages, scored_last=True), [0.0, 1.0, 2.0]) == pytest.approx([6.0, 6.0, 6.0])
    assert scored(Workload(**stages, scored_last=True, scorers=2), [0.0, 1.0, 9.0]) == pytest.approx([13.0, 13.0, 17.0])


@pytest.mark.parametrize("recall", [0.6, 0.87, 1.0])
def test_a_ranker_has_its_recall(recall: float):
    load = RoleLoad(reply=Spread(**TAIL))
    spread = noise(load, Ranker(share=0.2, recall=recall))
    keys = [chance.mixed(99, number) for number in range(3000)]
    lengths = [load.reply.draw(key) for key in keys]
    guesses = [
        length * 2.718281828 ** (spread * chance.normal(key, 7)) for length, key in zip(lengths, keys, strict=True)
    ]
    longest = [set(sorted(range(3000), key=values.__getitem__)[-600:]) for values in (lengths, guesses)]
    assert len(longest[0] & longest[1]) / 600 == pytest.approx(recall, abs=0.03)


def test_dispatch_by_length_shortens_a_cohort_and_a_poor_ranker_only_costs_time():
    def step_s(router: str, recall: float) -> float:
        changes = {
            "steps": 3,
            "spec": {"mechanisms": {"router": router}, "resources": {"rollout_devices": 4}},
            "workload": {"ranker": {"recall": recall}},
            "machine": {"engine": {"slots": 8}},
        }
        report = simulate(compose(document(TAIL), "sync", changes))
        assert report.trained_share == pytest.approx(1.0, abs=0.5)
        return report.step_s

    plain = step_s("least_loaded", 0.87)
    assert step_s("skew_aware", 0.87) < 0.97 * plain
    assert step_s("skew_aware", 0.3) < 1.3 * plain


def test_a_stage_takes_what_its_devices_do_beside_replies_and_gradients():
    """Engines that sleep and wake, trainers that hold one of two policies at a time, and the most asked policy."""
    stages = [["solver"], ["planner"], ["solver"], ["solver"]]
    given = document(100, spec={"agents": {"planner": {}}}, workload={"stages": stages})
    given["machine"] = {"engine": {"turn": 3.0}, "trainer": {"swap": 7.0}}

    def told(kind: Kind, **resources: int | None) -> dict[str, Stage]:
        one = compose(given, "flexmarl", {"spec": {"resources": resources}})
        return profile(one, cohort_work(one), 2, kind)

    alone, held = (told("temporal", trainer_policies=places) for places in (1, 2))
    assert alone["rollout"].switch_s == 2 * 3.0
    assert alone["training"].work_s - held["training"].work_s == pytest.approx(2 * 7.0 * 2)
    one, both = (told("spatial", engine_policies=places)["rollout"].work_s for places in (1, None))
    assert one == pytest.approx(0.75 * 2 * both), "three quarters are of one policy, which half of the places serve"


def test_settings_of_a_placement_have_as_many_trainers_as_can_be_used_and_share_all_places():
    given = document(100)
    apart, shared = (place(compose(given, "flexmarl"), 6, kind) for kind in ("spatial", "temporal"))
    assert apart is not None
    assert shared is not None
    most = sum(own.devices.most for own in compose(given, "flexmarl").spec.policies.values())
    assert shared.settings["resources"] == {"rollout_devices": 6, "training_devices": most, "engine_policies": None}
    assert "engine_policies" not in apart.settings["resources"]


@pytest.mark.parametrize(
    ("reply", "changes", "faster"),
    [
        (TAIL, {"machine": {"trainer": {"token": 0.0005}}}, "spatial"),
        (500, {"machine": {"engine": {"batch": 4, "turn": 0.1}, "trainer": {"swap": 0.1, "token": 1e-5}}}, "temporal"),
    ],
    ids=["a long tail beside much to train", "nothing but throughput"],
)  # fmt: skip
def test_the_planned_mode_is_the_faster_one_when_it_is_played(reply: object, changes: dict[str, Any], faster: str):
    given = document(reply, **changes)
    base = compose(given, "flexmarl")
    planned = place(base, devices=4)
    assert planned is not None
    assert planned.plan.mode == faster
    took, expected = {}, {}
    for mode in ("temporal", "spatial"):
        one = place(base, 4, mode)
        assert one is not None
        report = simulate(compose(given, "flexmarl", {"spec": one.settings, "steps": 3}))
        took[mode], expected[mode] = report.step_s, one.plan.seconds
    assert min(took, key=lambda mode: took[mode]) == faster
    assert took == pytest.approx(expected, rel=0.25)
