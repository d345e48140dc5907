"""Whole simulated runs: the real core under every preset, and invariants that hold whatever it decides."""

import json
from collections import Counter
from typing import Any

import pytest

from flexmarl.contracts.resolve import load_presets, resolve
from flexmarl.contracts.specification.branch_controllers import BRANCH_CONTROLLER
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus
from flexmarl.simulator import Machine, SimulationError, SimulationReport, simulate
from flexmarl.simulator.devices.engines import SimulatedEngine
from flexmarl.simulator.rollout.groups import SimulatedGroup
from flexmarl.simulator.rollout.playing import RolloutModel
from flexmarl.simulator.runs import alone, examine
from flexmarl.simulator.scenarios.scenario import Host, Scenario, scenario

BATCH = {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2, "rollout_groups": 2}


def told(preset: str = "flexmarl", *, seed: int = 1, spec: dict[str, Any] | None = None, **workload: Any) -> Scenario:
    written = {"batch": BATCH, "resources": {"rollout_devices": 2}} | (spec or {})
    resolved = resolve(written, preset=preset, template="reference_game")
    stages = {"stages": [["speaker"], ["listener"]], "environment": 0.5}
    return scenario({"spec": resolved.document, "workload": stages | workload, "seed": seed, "steps": 4})


def quiet(scenario: Scenario) -> SimulationReport:
    """Simulate, and see that no check finds a fault of scheduling."""
    report, findings = examine(scenario)
    assert findings == []
    return report


@pytest.fixture(scope="module")
def reports() -> dict[str, SimulationReport]:
    return {name: quiet(told(name)) for name in load_presets()}


def test_every_preset_trains(reports: dict[str, SimulationReport]):
    for report in reports.values():
        assert len(report.steps) == 4
        assert report.tokens > 0


def test_overlap_and_lag_buy_what_they_promise(reports: dict[str, SimulationReport]):
    step = {name: report.step_s for name, report in reports.items()}
    assert step["flexmarl"] < step["sync"]
    assert step["wavefront"] < step["flexmarl"]
    assert step["one_step_off"] < step["flexmarl"]
    assert step["bounded_async"] < step["one_step_off"]
    lag = {name: report.figures()["lag"] for name, report in reports.items()}
    assert lag["sync"] == lag["flexmarl"] == lag["wavefront"] == 0.0
    assert 0.0 < lag["one_step_off"] <= 1.0
    assert 0.0 < lag["bounded_async"] <= 2.0


def test_every_moment_of_every_device_has_one_cause(reports: dict[str, SimulationReport]):
    for report in reports.values():
        for use in ("engine", "trainer"):
            assert report.busy[use] + sum(report.idle[use].values()) == pytest.approx(1.0)
            assert min(report.idle[use].values()) >= 0.0


def test_strictly_on_policy_schedules_train_the_same_tokens(reports: dict[str, SimulationReport]):
    """What is said depends on the turn alone, so schedulers are compared on the same replies."""
    assert reports["sync"].tokens == reports["flexmarl"].tokens == reports["group_stream"].tokens
    assert reports["sync"].trained_share > 0.97


def test_equal_scenarios_give_equal_results_and_seeds_differ():
    one, again, other = simulate(told()), simulate(told()), simulate(told(seed=2))
    assert one == again
    assert one.figures() != other.figures()


def test_a_step_takes_what_its_parts_take_at_least():
    """Two episodes on an engine each, no noise: rollout, gradient, optimizer step and publication in a row."""
    batch = {"tasks_per_step": 1, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 1}
    plain = told("sync", spec={"batch": batch}, environment=0, each={"prompt": 0, "reply": 100})
    report = simulate(plain)
    engine, trainer = plain.machine.engine, plain.machine.trainer
    decode = 2 * 100 * engine.token
    train = 2 * (trainer.micro_batch + 200 * trainer.token) + 2 * trainer.step
    assert decode + train + engine.load < report.step_s < (decode + train + engine.load) * 1.1


def test_a_trainer_that_shares_a_host_takes_longer_while_episodes_are_played():
    """An episode of 10 s ends long before one of 100 s: its gradient falls beside the other, the last one alone."""
    batch = {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 1}
    uneven = {"environment": {"mean": 1.0, "slow_share": 0.5, "slow": 100.0}, "each": {"prompt": 0, "reply": 100}}
    once, host = told("flexmarl", spec={"batch": batch}, **uneven), Host(cores=2, playing=2.0, training=1.0, both=5.0)
    alone, beside = (
        simulate(one)
        for one in (once, once.model_copy(update={"machine": once.machine.model_copy(update={"host": host})}))
    )

    def gradients(report: SimulationReport) -> set[float]:
        return {round(one.ended - one.began, 6) for one in report.intervals if one.kind == "train"}

    (seconds,) = gradients(alone)
    assert gradients(beside) == {seconds, round(3.0 * seconds, 6)}


@pytest.mark.parametrize(
    "mechanisms",
    [
        {"redundancy": {"type": "extra_members", "extra": 2}},
        {"redundancy": {"type": "extra_environments", "extra": 2}},
        {"redundancy": {"type": "extra_groups", "extra": 4, "surplus": "cancel"}},
        {"redundancy": {"type": "extra_groups", "extra": 4, "extra_members": 2}},
        {"redundancy": {"type": "extra_groups", "extra": 4, "extra_members": 2, "surplus": "defer"}},
        {"parallel": {"turns": "together"}, "redundancy": {"type": "extra_environments", "extra": 2}},
        {"parallel": {"episodes": 6, "members": 2, "turns": "together"}},
        {"parallel": {"episodes": 6, "members": 2}},
        {"router": "length_aware"},
    ],
)
def test_options_of_rollout_are_played(mechanisms: dict[str, Any]):
    assert simulate(told(spec={"mechanisms": mechanisms}, failure=0.2)).tokens > 0


@pytest.mark.parametrize("members", [2, 3])
def test_a_group_that_has_enough_members_begins_with_no_further_ones(members: int):
    mechanisms = {"redundancy": {"type": "extra_members", "extra": 2}, "parallel": {"episodes": 3, "members": members}}
    report = simulate(told(spec={"mechanisms": mechanisms}, each={"prompt": 8, "reply": {"median": 100, "sigma": 1.0}}))
    assert report.rows == 4 * 8 * 4 * 2


def test_a_second_environment_stands_in_for_one_that_broke_and_there_is_one_at_most(monkeypatch: pytest.MonkeyPatch):
    """All episodes take as long, so the second one, begun later, counts only where the first broke off meanwhile."""
    begun: Counter[tuple[int, int, int]] = Counter()
    settled: list[EpisodeOutcome] = []
    begin, remember = RolloutModel._begin, RolloutModel._remember

    def began(playing: RolloutModel, group: SimulatedGroup, member: int, attempt: int, twin: bool) -> None:
        begun[group.order.draw, member, attempt] += twin
        begin(playing, group, member, attempt, twin)

    def ended(playing: RolloutModel, draw: int, outcome: EpisodeOutcome) -> None:
        settled.append(outcome)
        remember(playing, draw, outcome)

    monkeypatch.setattr(RolloutModel, "_begin", began)
    monkeypatch.setattr(RolloutModel, "_remember", ended)
    spare = {"redundancy": {"type": "extra_environments", "extra": 2}, "parallel": {"members": 1}}
    simulate(told(spec={"batch": BATCH | {"max_attempts": 1}, "mechanisms": spare}, failure=0.3, each={"reply": 50}))
    stood_in = [one for one in settled if one.replaced]
    assert stood_in
    assert all(one.status is EpisodeStatus.FINISHED and one.team_score is not None for one in stood_in)
    assert {one.team_score for one in settled if one.status is EpisodeStatus.FAILED} == {0.0}
    lost = sum(one.status is EpisodeStatus.FAILED for one in settled) / len(settled)
    assert 0.05 < lost < 0.28  # of the last two of four members both must break off, 0.09
    begun.clear()
    uneven = {"mean": 0.5, "slow_share": 0.4, "slow": 30.0}
    simulate(told(spec={"mechanisms": {"redundancy": spare["redundancy"]}}, environment=uneven))
    assert max(begun.values()) == 1, "none is begun twice"


@pytest.mark.parametrize("granularity", ["turn", "episode"])
def test_no_more_episodes_play_at_once_than_there_are_places(monkeypatch: pytest.MonkeyPatch, granularity: str):
    """Whatever ends an episode - its last attempt, a second environment, enough others - its place is given up once."""
    most = 0
    begin = RolloutModel._begin

    def began(playing: RolloutModel, group: SimulatedGroup, member: int, attempt: int, twin: bool) -> None:
        nonlocal most
        begin(playing, group, member, attempt, twin)
        held = [one for own in playing.groups.values() for each in own for one in each.playing]
        most = max(most, sum(not (one.twin or one.played) for one in held))

    monkeypatch.setattr(RolloutModel, "_begin", began)
    for redundancy in ({"type": "extra_members", "extra": 2}, {"type": "extra_environments", "extra": 2}):
        mechanisms = {"redundancy": redundancy, "parallel": {"episodes": 6}}
        asked = told(spec={"mechanisms": mechanisms}, failure=0.3, reward={"mean": 1.0, "sigma": 1.0})
        simulate(asked.model_copy(update={"granularity": granularity}))
    assert most == 6


def test_figures_are_of_what_the_report_holds(reports: dict[str, SimulationReport]):
    own = reports["bounded_async"]
    shown, seconds = own.figures(), own.ended - own.began
    assert shown["rows_s"] == pytest.approx(own.rows / seconds, abs=1e-6)
    assert shown["step_median_s"] == pytest.approx(sorted(own.steps)[1] / 2 + sorted(own.steps)[2] / 2, abs=1e-6)
    assert own.lag_max >= max(own.lag.values())
    assert reports["mini_batch"].lag_max == 1.0, "the rows that are most behind, not those of the middle"
    assert max(reports["mini_batch"].lag.values()) == 0.5
    assert 0.0 < own.lag_done < shown["lag"]


def test_a_second_environment_saves_a_step_from_one_that_hangs():
    slow = {"environment": {"mean": 0.5, "slow_share": 0.05, "slow": 300.0}}
    alone = simulate(told(**slow))
    beside = simulate(told(spec={"mechanisms": {"redundancy": {"type": "extra_environments", "extra": 2}}}, **slow))
    assert beside.step_s < alone.step_s / 2
    assert beside.tokens == alone.tokens


def test_engines_that_hold_one_policy_are_moved_to_where_turns_wait():
    hub = {"roles": {"speaker": {"reply": 4000}, "listener": {"reply": 50}}, "stages": [["speaker", "listener"]]}
    resources = {"rollout_devices": 6, "engine_policies": 1}
    still = simulate(told(spec={"resources": resources, "mechanisms": {"mover": "static"}}, **hub))
    moving = simulate(told(spec={"resources": resources, "mechanisms": {"mover": "demand"}}, **hub))
    assert still.moves == 0
    assert moving.moves > 0
    assert moving.step_s < still.step_s


def test_engines_of_several_devices_are_fewer_and_lie_on_one_host():
    """Four devices are two engines of two: as fast as two engines of the same speed, on twice as many devices."""
    two = simulate(told(spec={"resources": {"rollout_devices": 2}}))
    wide = simulate(
        told(
            spec={
                "resources": {"engine": "vllm", "rollout_devices": 4, "engine_devices": 2},
                "policies": {name: {"model": {"size": "M"}} for name in ("speaker", "listener")},
            }
        )
    )
    assert sum(use == "engine" for use in wide.uses.values()) == 2
    assert (wide.step_s, wide.tokens) == (two.step_s, two.tokens)


def test_policies_share_a_trainer_by_swapping():
    resources = {"rollout_devices": 2, "training_devices": 1, "trainer_policies": 1}
    assert simulate(told(spec={"resources": resources})).swaps >= 4


def test_engines_and_trainers_share_devices_in_turns():
    own = {"resources": {"rollout_devices": 2, "training_devices": 2}}
    apart = simulate(told("sync", spec=own))
    shared = simulate(told("sync", spec=own | {"mechanisms": {"allocation": "colocated"}}))
    assert shared.tokens == apart.tokens
    assert shared.step_s > apart.step_s
    at_work = [i for i in shared.intervals if i.kind in ("rollout", "train", "step")]
    for one in at_work:
        for other in at_work:
            if shared.uses[one.lease_id] == "engine" and shared.uses[other.lease_id] == "trainer":
                assert one.ended <= other.began or other.ended <= one.began


def test_what_is_not_simulated_is_refused():
    given = told()
    sampling = given.spec.sampling.model_copy(update={"branch_controller": BRANCH_CONTROLLER.options("at_grpo_tree")})
    spec = given.spec.model_copy(update={"sampling": sampling})
    with pytest.raises(SimulationError, match="branch_controller: none"):
        simulate(given.model_copy(update={"spec": spec}))


def test_nothing_is_lost_on_the_way(monkeypatch: pytest.MonkeyPatch):
    """Every turn that is asked ends, is cancelled or is still somewhere; engines make no token of anybody else."""
    routed: dict[int, Any] = {}
    ask = SimulatedEngine.ask

    def counted(self: SimulatedEngine, turn: Any) -> None:
        routed[id(turn)] = turn
        ask(self, turn)

    monkeypatch.setattr(SimulatedEngine, "ask", counted)
    cluster = alone(told("bounded_async", failure=0.1))
    while len(cluster.log.stepped) < 4:
        assert cluster.clock.step()
    engines, asked = cluster.playing.engines.values(), list(routed.values())
    on_their_way = [turn for turn in asked if turn.phase != "ended"]
    held = [turn for engine in engines for policy in engine.held.newest for turn in engine.asked_of(policy)]
    assert {id(turn) for turn in held} <= {id(turn) for turn in on_their_way}
    made = sum(turn.made for turn in asked if turn.phase == "ended")
    running = sum(engine._batch.made(turn) for engine in engines for turn in engine._batch.turns())
    assert sum(engine.made() for engine in engines) == pytest.approx(made + running, rel=0.02)


@pytest.mark.parametrize(
    "redundancy",
    [
        {"type": "extra_environments", "extra": 2},
        {"type": "extra_members", "extra": 2},
        {"type": "extra_groups", "extra": 4, "surplus": "cancel"},
    ],
)
def test_engines_make_nothing_for_what_counts_no_more(redundancy: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    whose = {}
    ask = SimulatedEngine.ask

    def noted(self: SimulatedEngine, turn: Any) -> None:
        whose[id(turn)] = (turn, turn.episode)
        ask(self, turn)

    monkeypatch.setattr(SimulatedEngine, "ask", noted)
    cluster = alone(told(spec={"mechanisms": {"redundancy": redundancy}}))
    while len(cluster.log.stepped) < 3:
        assert cluster.clock.step()
        for engine in cluster.playing.engines.values():
            for policy in engine.held.newest:
                episodes = [whose[id(turn)][1] for turn in engine.asked_of(policy)]
                assert not any(episode.over or episode.group.over for episode in episodes)
    assert any(episode.over and turn.made < turn.reply for turn, episode in whose.values())


def test_a_worker_begins_with_one_command_after_the_other(monkeypatch: pytest.MonkeyPatch):
    given = told()
    delays = given.machine.delays.model_copy(update={"turn": 0.01})
    cluster = alone(given.model_copy(update={"machine": given.machine.model_copy(update={"delays": delays})}))
    begun: dict[float, set[int]] = {}
    ask = SimulatedEngine.ask

    def noted(self: SimulatedEngine, turn: Any) -> None:
        if turn.episode.stage == 1:
            begun.setdefault(cluster.clock.now, set()).add(turn.episode.group.no)
        ask(self, turn)

    monkeypatch.setattr(SimulatedEngine, "ask", noted)
    while len(cluster.log.stepped) < 1:
        assert cluster.clock.step()
    assert len(set().union(*begun.values())) > 1
    assert max(len(commands) for commands in begun.values()) == 1


def test_a_run_that_cannot_end_says_why():
    hopeless = told(failure=0.999, spec={"batch": BATCH | {"max_attempts": 1}})
    with pytest.raises(SimulationError, match="The run ended after 2 of 5 steps: failed: the last episode failed with"):
        simulate(hopeless)


def test_a_report_is_plain_numbers():
    json.dumps(simulate(told()).figures(), allow_nan=False)


def test_devices_of_a_kind_are_as_that_kind_says():
    kind = {"devices": 2, "hardware": "prefill", "engine": {"token": 0.05}, "times": 3.0}
    machine = Machine.model_validate({"kinds": [kind, {"devices": 1, "times": 2.0}], "engine": {"token": 0.02}})
    assert [machine.kind(number).engine.token for number in range(4)] == [0.05, 0.05, 0.01, 0.02]
    assert [machine.kind(number).times for number in range(4)] == [3.0, 3.0, 2.0, 1.0]


def test_slow_kinds_take_longer_for_what_they_do():
    plain = told("sync")
    kinds = {"kinds": [{"devices": 2}, {"devices": 1, "times": 3.0}]}  # two engines, then the trainer
    slow = simulate(plain.model_copy(update={"machine": Machine.model_validate(kinds)}))
    assert trained_s(slow) == pytest.approx(3 * trained_s(simulate(plain)), rel=0.01)


def trained_s(report: SimulationReport) -> float:
    """Return the device time of gradients and steps, per step."""
    return sum(i.ended - i.began for i in report.intervals if i.kind in ("train", "step")) / len(report.steps)


def test_requests_find_the_hardware_that_suits_them():
    """Long prompts are slow on what decodes fast and the other way round: a router that knows is quicker."""
    kinds = [
        {"devices": 1, "hardware": "prefill", "engine": {"prefill": 50_000.0, "token": 0.03}},
        {"devices": 1, "hardware": "decode", "engine": {"prefill": 1_000.0, "token": 0.005}},
    ]
    loads = {"speaker": {"prompt": 4000, "reply": 20}, "listener": {"prompt": 10, "reply": 400}}
    step = {}
    for router in ("least_loaded", "hardware_class"):
        given = told("sync", spec={"mechanisms": {"router": router, "parallel": {"episodes": 6}}}, roles=loads)
        step[router] = simulate(given.model_copy(update={"machine": Machine.model_validate({"kinds": kinds})})).step_s
    assert step["hardware_class"] < 0.8 * step["least_loaded"]
