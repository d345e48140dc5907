"""Preferences: pairs as the core cuts them, gradients of the formula itself, and what half a pair is refused with."""

import random
from collections.abc import Sequence

import msgspec
import pytest
import torch
from msgspec import structs

from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW
from tests.unit.orchestrator.fake_cluster import make_spec, started
from tests.unit.orchestrator.fake_parts import refusals
from tests.unit.workers.test_train_equality import EPOCH, SOURCE, WORDS, relative, row_of
from workers.models import architecture_of
from workers.models.weights import initial_weights
from workers.training import learner as learner_module
from workers.training.blocks import blocks_of
from workers.training.decoder import Decoder, parameter_order
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.learner import Learner, Objective
from workers.training.objective import token_scores
from workers.training.packing import pack
from workers.training.pairs import weigh
from workers.training.parameters import FlatParameters
from workers.training.wire import TrainRow

PAIRS = {
    "algorithm__loss__type": "online_dpo",
    "algorithm__advantage__type": "best_worst",
    "batch__episodes_per_task": 4,
    "batch__tasks_per_step": 7,
    "batch__micro_batch_groups": 2,
    "budget__train_steps": 1,
}
SETTINGS = LOSS.options(type="online_dpo", beta=0.7)
PROTOCOLS = {
    "micro_batch": {},
    "batch": {},
    "per_group": {},
    "mini_batch": {"mechanisms__lag_policy__bound": 2, "batch__mini_batches": 3},
}


def cuts(protocol: str, policy: str = "speaker", **more: object) -> list[list[TrainRow]]:
    """Return a policy's micro-batches of one cohort as the core cuts them, several turns in an episode."""
    spec = make_spec(**PAIRS, mechanisms__trainer_protocol=protocol, **PROTOCOLS[protocol], **more)
    cluster = started(spec, seed=5).run()
    return [
        [
            structs.replace(
                row_of(s.draw, s.member, s.turn), advantages=list(s.advantages), weight=1.0, pair=f"{s.draw}:{s.role}"
            )
            for s in cut.samples
        ]
        for cut in cluster.commands("cut_micro_batch")
        if cut.ref.policy == policy
    ]


def joined(parts: Sequence[Sequence[TrainRow]]) -> list[TrainRow]:
    return [row for part in parts for row in part]


def reference(precision: str) -> Decoder:
    weights = initial_weights(SOURCE, WORDS, seed=9)
    flat = FlatParameters(weights, parameter_order(weights.keys()), precision, "cpu", frozen=True)
    return Decoder(flat, architecture_of(SOURCE))


def learner_of(precision: str) -> Learner:
    weights = initial_weights(SOURCE, WORDS, seed=4)
    return Learner(weights, architecture_of(SOURCE), Objective.of(SETTINGS), AdamW(), precision, epoch=EPOCH)


def gathered(precision: str, parts: Sequence[Sequence[TrainRow]], entropy: float = 0.05) -> Learner:
    learner, near = learner_of(precision), reference(precision)
    for number, rows in enumerate(parts):
        learner.accumulate(EPOCH, number, b"", rows, entropy, reference=near)
    return learner


def formula(rows: Sequence[TrainRow], precision: str) -> tuple[torch.Tensor, float, int]:
    """Return gradient, sum and number of -log sigmoid(beta h) over the pairs, by automatic differentiation."""
    learner, near = learner_of(precision), reference(precision)
    sums: dict[str, torch.Tensor] = {}
    for row in rows:
        if not row.advantages[0]:
            continue
        [batch] = pack(blocks_of([row], lambda tokens: (1.0, 1.0), WORDS), WORDS, 4096)
        with torch.no_grad():
            far = token_scores(near, batch)[0].sum()
        share = token_scores(learner.decoder, batch)[0].sum() - far
        sums[row.pair] = sums.get(row.pair, torch.zeros_like(share)) + row.advantages[0] * share
    loss = torch.stack([-torch.nn.functional.logsigmoid(SETTINGS.beta * h) for h in sums.values()]).sum()
    learner.parameters.fresh.zero_()
    loss.backward()
    return learner.parameters.fresh.clone(), loss.item(), len(sums)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("changes", [{}, {"mechanisms__ordered": True}, {"sampling__keep_members": 3}], ids=str)
def test_the_core_never_parts_a_pair(protocol: str, changes: dict):
    if protocol == "mini_batch" and changes.get("mechanisms__ordered"):
        pytest.skip("refused: several versions in a cohort")
    for policy in ("speaker", "listener"):
        for rows in cuts(protocol, policy, **changes):
            sides: dict[str, set[float]] = {}
            for row in rows:
                if row.advantages[0]:
                    sides.setdefault(row.pair, set()).add(row.advantages[0])
            assert all(found == {1.0, -1.0} for found in sides.values())


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_the_gradient_is_that_of_the_formula(precision: str):
    rows = joined(cuts("batch"))
    gradient, loss, pairs = formula(rows, precision)
    learner = gathered(precision, [rows], entropy=0.0)
    stats = learner.accumulate(EPOCH, 0, b"", rows, 0.0)
    assert pairs > 3
    assert (stats.z, stats.rows) == (pairs, len(rows))
    assert stats.loss_sum == pytest.approx(loss, rel=1e-5)
    assert relative(learner.accumulator.total, gradient) < (1e-12 if precision == "fp64" else 1e-5)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_any_split_by_groups_and_any_packing_is_the_full_batch(precision: str, monkeypatch: pytest.MonkeyPatch):
    rows = joined(cuts("batch"))
    whole = gathered(precision, [rows])
    of_group: dict[str, list[TrainRow]] = {}
    for row in rows:
        of_group.setdefault(row.pair, []).append(row)
    limit = 1e-12 if precision == "fp64" else 1e-5
    for seed in range(3):
        rng = random.Random(seed)
        groups = rng.sample(list(of_group.values()), len(of_group))
        parts = [joined(groups[start::3]) for start in range(3)]
        for part in parts:
            rng.shuffle(part)
        monkeypatch.setattr(learner_module, "TOKEN_BUDGET", {"cpu": (2048, 16, 64)[seed], "cuda": 2048})
        split = gathered(precision, parts)
        assert split.accumulator.z == whole.accumulator.z
        assert relative(split.accumulator.total, whole.accumulator.total) < limit


def test_half_a_pair_is_refused_and_changes_nothing():
    rows = joined(cuts("batch"))
    worse = next(row for row in rows if row.advantages[0] < 0)
    kept = [row for row in rows if not (row.pair == worse.pair and row.advantages[0] < 0)]
    learner = gathered("fp64", [rows[:0]])
    held = learner.accumulator.total.clone()
    with pytest.raises(TrainerRefusal) as refused:
        learner.accumulate(EPOCH, 7, b"", kept, 0.0, reference=reference("fp64"))
    assert refused.value.code is RefusalCode.MALFORMED_ROW
    assert worse.pair in refused.value.detail
    assert torch.equal(learner.accumulator.total, held)
    assert learner.accumulator.micro_batches == (0,)


def test_without_a_first_version_nothing_is_compared():
    with pytest.raises(TrainerRefusal) as refused:
        learner_of("fp64").accumulate(EPOCH, 0, b"", joined(cuts("batch")), 0.0)
    assert refused.value.code is RefusalCode.STATE


def test_a_micro_batch_without_pairs_is_a_null_step():
    rows = [structs.replace(row, advantages=[0.0]) for row in joined(cuts("batch"))]
    learner = gathered("fp64", [rows])
    assert learner.accumulator.z == 0.0
    assert learner.step(1e-2).null_step


def test_margins_beyond_all_bounds_stay_finite():
    pair = [TrainRow(b"", b"", b"", b"", 1.0, [sign], 1.0, pair="0:a") for sign in (1.0, -1.0)]
    lost, won = (
        weigh(pair, ratios, LOSS.options(type="online_dpo", beta=1.0)) for ratios in ((-1e6, 1e6), (1e6, -1e6))
    )
    assert (lost.advantages, lost.loss) == ([[1.0], [-1.0]], 2e6)
    assert (won.advantages, won.loss) == ([[0.0], [-0.0]], 0.0)


@pytest.mark.parametrize("beta", [0.1, 0.5, 3.0])
def test_a_lead_is_drawn_to_its_target_from_both_sides(beta: float):
    """The drive of a pair is the slope of its loss, and changes its sign where the lead is what it should be."""
    pair = [TrainRow(b"", b"", b"", b"", 1.0, [sign], 1.0, pair="0:a") for sign in (1.0, -1.0)]
    settings, target, step = LOSS.options(type="online_dpo", beta=beta, form="ipo"), 0.5 / beta, 1e-5

    def weighed(lead: float):
        return weigh(pair, (lead, 0.0), settings)

    for lead in (-2.0, 0.0, target - 0.5, target + 0.5, 40.0):
        slope = (weighed(lead + step).loss - weighed(lead - step).loss) / (2 * step)
        [better], [worse] = weighed(lead).advantages
        assert better == pytest.approx(-slope, rel=1e-4)
        assert worse == -better
        assert (better > 0) is (lead < target)
    assert weighed(target).loss == pytest.approx(0.0, abs=1e-12)


def test_rows_travel_with_the_group_they_are_compared_in():
    row = TrainRow(b"", b"", b"", b"", 1.0, [1.0], 1.0, [3, 1], "4:speaker")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=TrainRow) == row


@pytest.mark.parametrize(
    ("changes", "pointer", "code"),
    [
        ({"algorithm__advantage__type": "grpo"}, "/algorithm/advantage/type", "not_with_pairs"),
        ({"algorithm__advantage__per_turn": True}, "/algorithm/advantage/per_turn", "not_with_pairs"),
        ({"algorithm__group_key": "team"}, "/algorithm/group_key", "not_with_pairs"),
        ({"algorithm__correction": "sequence_filter"}, "/algorithm/correction/type", "not_with_pairs"),
        ({"algorithm__kl__coefficient": 0.1}, "/algorithm/kl/coefficient", "not_with_pairs"),
        ({"algorithm__advantage__divide_by_std": True}, "/algorithm/advantage/divide_by_std", "not_read"),
        ({"algorithm__advantage__baseline_over": "rows"}, "/algorithm/advantage/baseline_over", "not_read"),
        ({"algorithm__loss__aggregation": "constant_norm"}, "/algorithm/loss/aggregation", "not_read"),
        ({"algorithm__loss__type": "ppo_clip", "algorithm__loss__beta": 0.5}, "/algorithm/loss/beta", "not_read"),
        ({"batch__settle": "episode"}, "/batch/settle", "needs_group"),
    ],
)
def test_what_preferences_do_not_read_is_refused(changes: dict, pointer: str, code: str):
    assert not broken_rules(make_spec(**PAIRS))
    found = refusals(**(PAIRS | changes))
    assert (pointer, code) in {(problem.pointer, problem.code) for problem in found}
