"""Any legal mix of mechanisms under faults and verbs: a drain comes to rest, the run ends, and every row is counted."""

import random

import pytest

from flexmarl.contracts.events import PauseMode, RunVerb, Verb
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus
from tests.unit.orchestrator.asking import deliver_all, quiet
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started
from tests.unit.orchestrator.test_relevance import same_with_short_ways

PROTOCOLS = (
    {},
    {"mechanisms__trainer_protocol": "batch"},
    {"mechanisms__trainer_protocol": "per_group"},
    {"mechanisms__trainer_protocol": "mini_batch", "batch__mini_batches": 2},
)
TEAMS = (
    {},
    {"agents": {"speaker": {"policy": "both"}, "listener": {"policy": "both"}}},
    {"agents": {"speaker": {"trainable": False}, "listener": {}}},
)
AT_TURN = {"drop": ["play", "abandon"], "refresh": ["play", "abandon"]}
ENDS = {RunReason.COMMAND_FAILED, RunReason.CHILDREN_LOST, RunReason.EPISODES_FAILED, RunReason.USER_REQUEST}


def any_mix(rng):
    """Draw a legal specification."""
    while True:
        surplus = rng.choice(["join", "keep", "continue", "cancel"])
        extra = {"type": "extra_groups", "extra": rng.randint(1, 4), "surplus": surplus}
        spec = make_spec(
            **rng.choice(PROTOCOLS),
            **rng.choice(TEAMS),
            **alone(rng),
            mechanisms__publication=rng.choice(["cohort", "wavefront", "delayed"]),
            mechanisms__lag_policy__bound=rng.choice([0, 0, 1, 2, 3, 4]),
            mechanisms__lag_policy__at_admission=rng.choice(["admit", "wait", "trained"]),
            mechanisms__lag_policy__in_flight=rng.choice(["finish", "finish", "continue", "discard", "resume"]),
            mechanisms__lag_policy__at_cut=(at_cut := rng.choice(["wait", "wait", "drop", "refresh", "train"])),
            mechanisms__lag_policy__at_turn=rng.choice(AT_TURN.get(at_cut, ["play"])),
            mechanisms__redundancy=extra if rng.random() < 0.5 else "none",
            mechanisms__policy_clock=rng.random() < 0.2,
            mechanisms__ordered=rng.random() < 0.2,
            batch__min_rows=rng.choice([1, 1, 20]),
            batch__max_carry=rng.choice([1, 2]),
            batch__min_members=rng.choice([None, 2]),
            batch__rollout_groups=rng.choice([1, 2]),
            sampling__group_filter=rng.choice(["none", "drop_zero_variance", "dynamic_sampling"]),
            evaluation__every_steps=rng.choice([1, 2]),
            resources=rng.choice([{}, {}, {"rollout_devices": 2, "engine_policies": 1}]),
            sampling__keep_members=rng.choice([None, None, 2]),
            algorithm__group_key=rng.choice(["episode_group", "agent_turn", "team"]),
            algorithm__shaping=rng.choice(["none", {"type": "overlong", "buffer_tokens": 1}]),
        )
        if not broken_rules(spec):
            return spec


def alone(rng):
    """Settle by the episode now and then: then only an estimator that compares no episodes is legal."""
    if rng.random() < 0.7:
        return {}
    return {"batch__settle": "episode", "algorithm__advantage": {"type": "reinforce"}}


def any_faults(rng):
    return Faults(
        twice=rng.choice([0, 0.3]),
        child_death=rng.choice([0, 0, 0.005, 0.02]),
        lease_end=rng.choice([0, 0, 0.002]),
        recall=rng.choice([0, 0, 0.01, 0.05]),
        uncommitted=rng.choice([0, 0.02, 0.1]),
        refused=rng.choice([0, 0.02]),
        zombie=rng.choice([0, 0.2]),
        episode_failure=rng.choice([0, 0.02, 0.2]),
    )


def any_verb(rng):
    often = [Verb.PAUSE] * 3 + [Verb.RESUME] * 2
    verb = rng.choice([*often, Verb.STOP, Verb.KILL, Verb.RETRY])
    return RunVerb(verb=verb, mode=rng.choice(list(PauseMode)), hold_s=rng.choice([None, 0.0, 0.05, 3.0]))


def settle_facts(cluster):
    facts, cluster.faults = cluster.faults, Faults()
    deliver_all(cluster)
    cluster.faults = facts


@pytest.mark.parametrize("seed", range(150))
def test_any_mix_of_mechanisms_ends_and_counts_every_row(seed):
    rng = random.Random(seed)
    cluster = started(any_mix(rng), seed=seed, faults=any_faults(rng), round_trip=seed % 8 == 0)
    for _ in range(rng.randint(0, 8)):
        for _ in range(rng.randint(0, 120)):
            if cluster.status in TERMINAL or (cluster.status is RunStatus.PAUSED and quiet(cluster)):
                break
            cluster.happen()
        if cluster.status in TERMINAL:
            settle_facts(cluster)
        cluster.tell(any_verb(rng))
    if cluster.status is RunStatus.PAUSING:
        cluster.run(until=lambda x: x.status is not RunStatus.PAUSING, limit=20_000)
    if cluster.status is RunStatus.PAUSED:
        cluster.verb(Verb.RESUME)
    cluster.run(limit=20_000)
    settle_facts(cluster)
    state, episodes = cluster.core.state, cluster.core.state.totals.train_episodes
    assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
    assert state.totals.samples_trained == len(cluster.trained)
    assert {name: policy.version for name, policy in state.policies.items() if policy.version is not None} == {
        name: len(history) - 1 for name, history in cluster.versions.items()
    }
    if state.lifecycle.status is RunStatus.FAILED:
        assert state.lifecycle.reason in ENDS
    if state.lifecycle.status is RunStatus.COMPLETED and state.lifecycle.reason is RunReason.BUDGET_STEPS:
        assert state.step == 4
    same_with_short_ways(cluster)
