"""Replies that are continued (`echo`) in the core: what the thresholds are taken from, and what is said of it."""

import pytest

from flexmarl.contracts.events import Verb
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import Branch, Origin, TokenSignal
from flexmarl.orchestrator import Orchestrator
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec
from tests.unit.orchestrator.fake_parts import refusals

MEMBERS, ROOTS = 6, 3
RUN = {"sampling__branch_controller": "echo", "batch__episodes_per_task": MEMBERS}


class Doubting(FakeCluster):
    """Members from 3 on begin with six tokens of another one's first reply."""

    def episode(self, member, command=None):
        found = super().episode(member, command)
        if command is None or command.origin is not Origin.TRAIN or not found.samples:
            return found
        if not self.spec.sampling.branch_controller.continuations(MEMBERS):
            return found
        if member < ROOTS:
            branch = Branch(signals=tuple(TokenSignal(n / 10 + member, 0.9 - n / 100, n / 50) for n in range(12)))
        else:
            branch = Branch(root=member % ROOTS, tokens=6, signals=(TokenSignal(2.5, 0.4, 0.7),))
        return found.model_copy(update={"branch": branch})


def run_of(round_trip=False, faults=None, **changes):
    found = Doubting(make_spec(**RUN | changes), seed=2, faults=faults or Faults(), round_trip=round_trip)
    found.verb(Verb.START)
    return found


def test_a_step_plays_by_the_quantiles_of_the_tokens_before_it():
    cluster = run_of().run()
    assert cluster.status is RunStatus.COMPLETED
    trained = [one for one in cluster.commands("play_groups") if one.origin is Origin.TRAIN]
    assert {one.predictor for one in trained if one.cohort == 0} == {()}
    later = {one.predictor for one in trained if one.cohort}
    assert later
    for high, low, confidence, jump in later:
        assert 0 <= low < high <= 3.1 + 1e-9
        assert 0.79 <= confidence <= 0.9
        assert 0 <= jump <= 0.22 + 1e-9
    assert all(one.predictor == () for one in cluster.commands("play_groups") if one.origin is not Origin.TRAIN)
    assert not cluster.core.state.choice.prefixes.waiting


def test_a_group_says_once_at_which_tokens_its_members_went_on():
    cluster = run_of().run()
    said = [r for d in cluster.decisions for r in d.rulings if r.kind is RulingKind.GROUP_BRANCHED]
    assert len({ruling.target for ruling in said}) == len(said) > 0
    for ruling in said:
        assert "3 members go on at a token in doubt: 3 after 6 tokens of turn 1 of 0, which " in ruling.reason
        assert "(entropy 2.50, 0.70 above the token before, confidence 0.40)" in ruling.reason


def test_a_restored_core_and_a_repeated_log_decide_the_same():
    whole, restored = run_of().run(), run_of(round_trip=True).run()
    played = [[n.command.model_dump_json() for d in one.decisions for n in d.commands] for one in (whole, restored)]
    assert played[0] == played[1]
    again = Orchestrator(whole.spec)
    for (event, now), decision in zip(whole.log, whole.decisions, strict=True):
        assert again.handle(event, now) == decision
    assert again.snapshot() == whole.core.snapshot()


def test_episodes_add_up_whatever_happens():
    for changes in ({}, {"mechanisms__lag_policy": {"bound": 2, "in_flight": "discard"}}):
        cluster = run_of(faults=Faults(twice=0.2, child_death=0.01, episode_failure=0.1, refused=0.02), **changes).run()
        assert cluster.status in (RunStatus.COMPLETED, RunStatus.FAILED)
        episodes = cluster.core.state.totals.train_episodes
        assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled


@pytest.mark.parametrize(
    ("pointer", "code", "legal", "changes"),
    [
        ("/resources/engine", "not_with_branches", "Set torch", {"resources__engine": "vllm"}),
        ("/mechanisms/ordered", "not_with_branches", "Set false", {"mechanisms__ordered": True}),
        (
            "/mechanisms/lag_policy/in_flight",
            "not_with_branches",
            "Set finish or continue or resume",
            {"mechanisms__lag_policy": {"bound": 1, "in_flight": "restart_turn"}},
        ),
        ("/algorithm/advantage/type", "not_with_branches", "Set grpo", {"algorithm__advantage": "rloo"}),
        ("/batch/episodes_per_task", "out_of_range", "Set 4 or more", {"batch__episodes_per_task": 2}),
        (
            "/sampling/branch_controller/low_quantile",
            "invalid",
            "",
            {"sampling__branch_controller": {"type": "echo", "low_quantile": 0.9}},
        ),
    ],
)
def test_what_cannot_be_combined_with_it_is_refused_with_a_legal_value(pointer, code, legal, changes):
    found = {problem.pointer: problem for problem in refusals(**RUN | changes)}
    assert pointer in found, found
    assert found[pointer].code == code or not legal
    assert legal in (found[pointer].hint or "")


def test_episodes_of_one_turn_and_other_ways_to_settle_go_with_it():
    assert not refusals(**RUN | {"mechanisms__lag_policy": {"bound": 1, "in_flight": "resume"}})
