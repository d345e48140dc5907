"""MNPO: pairs are seen from the reference and from the ends of the last rounds, for every life of a trainer."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from msgspec import structs

from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW
from flexmarl.contracts.wire import TrainStats
from tests.unit.orchestrator.fake_cluster import make_spec
from tests.unit.orchestrator.fake_parts import refusals
from tests.unit.workers.test_train_equality import EPOCH, SOURCE, WORDS, relative
from tests.unit.workers.test_train_pairs import PAIRS, cuts, joined
from tests.unit.workers.test_train_trainer import accumulate, create, make_rows, make_trainer, refusal, step
from workers.models import architecture_of
from workers.models.weights import initial_weights
from workers.training.blocks import blocks_of
from workers.training.decoder import Decoder, parameter_order
from workers.training.errors import RefusalCode
from workers.training.learner import Learner
from workers.training.objective import Objective, token_scores
from workers.training.packing import pack
from workers.training.pairs import weigh
from workers.training.parameters import FlatParameters
from workers.training.reference import LogLinearMixture
from workers.training.trainer import Trainer
from workers.training.wire import BindRequest, RedoBatch, RedoStep, StepReply, TrainRow
from workers.transfer import LocalTier

ETA = 0.0075
TARGET = 0.5 / ETA
PAIR = [TrainRow(b"", b"", b"", b"", 1.0, [sign], 1.0, pair="0:a") for sign in (1.0, -1.0)]


def loss_of(**settings: object):
    return LOSS.options(type="online_dpo", **{"form": "mnpo", "beta": ETA, **settings})


def algorithm(**settings: object) -> AlgorithmSpec:
    return AlgorithmSpec(loss=loss_of(**settings), advantage={"type": "best_worst"})


@pytest.mark.parametrize(
    ("settings", "version", "expected"),
    [
        ({"round_steps": 4}, 0, {0: 1.0}),
        ({"round_steps": 4}, 3, {0: 1.0}),
        ({"round_steps": 4}, 4, {0: 2 / 3, 4: 1 / 3}),
        ({"round_steps": 4}, 11, {0: 1 / 3, 8: 1 / 3, 4: 1 / 3}),
        ({"round_steps": 4, "reference_share": 0.0}, 3, {0: 1.0}),
        ({"round_steps": 4, "reference_share": 0.0, "newest_share": 0.75}, 9, {8: 0.75, 4: 0.25}),
        ({"round_steps": 4, "history": 1}, 9, {0: 1 / 3, 8: 2 / 3}),
        ({"reference_share": 1.0}, 45, {0: 1.0}),
        ({"history": 0, "reference_share": 0.0}, 45, {}),
        ({"form": "ipo"}, 45, {0: 1.0}),
    ],
    ids=str,
)
def test_what_a_version_is_seen_from(settings: dict, version: int, expected: dict[int, float]):
    own = algorithm(**settings)
    found = own.compared_with(version)
    assert found == pytest.approx(expected)
    assert all(number <= version for number in found)
    assert len(found) <= own.most_compared


def test_opponents_never_leave_the_weights_short_however_few_there_are():
    for share in (0.0, 0.1, 1 / 3, 0.7):
        own = algorithm(reference_share=share, newest_share=0.3, round_steps=5)
        assert all(sum(own.compared_with(version).values()) == pytest.approx(1.0) for version in range(23))


def test_where_all_policies_are_one_the_loss_is_the_square_of_its_target():
    same = weigh(PAIR, (0.0, 0.0), loss_of())
    assert same.loss == pytest.approx(4444.444, abs=1e-3)
    assert same.advantages == [[pytest.approx(2 * TARGET)], [pytest.approx(-2 * TARGET)]]


def test_the_worse_member_as_the_better_one_sees_the_opposite_lead():
    lead, settings = 3.0, loss_of()
    won, lost = weigh(PAIR, (lead, 0.0), settings), weigh(PAIR, (0.0, lead), settings)
    assert won.loss == pytest.approx((lead - TARGET) ** 2)
    assert lost.loss == pytest.approx((-lead - TARGET) ** 2)
    beyond = weigh(PAIR, (2 * TARGET, 0.0), settings)
    assert beyond.advantages[0][0] == pytest.approx(-weigh(PAIR, (0.0, 0.0), settings).advantages[0][0])


def decoder(seed: int) -> Decoder:
    weights = initial_weights(SOURCE, WORDS, seed=seed)
    flat = FlatParameters(weights, parameter_order(weights.keys()), "fp64", "cpu", frozen=True)
    return Decoder(flat, architecture_of(SOURCE))


def learner_of(**settings: object) -> Learner:
    own = algorithm(**settings)
    weights = initial_weights(SOURCE, WORDS, seed=4)
    return Learner(weights, architecture_of(SOURCE), Objective.of(own.loss, own), AdamW(), "fp64", epoch=EPOCH)


def formula(rows: Sequence[TrainRow], parts: Sequence[tuple[Decoder, float]]) -> tuple[torch.Tensor, float]:
    """Return gradient and sum of (logit - 1 / (2 eta))^2 over pairs, by automatic differentiation."""
    learner = learner_of()
    logits: dict[str, torch.Tensor] = {}
    for row in rows:
        if not row.advantages[0]:
            continue
        [batch] = pack(blocks_of([row], lambda tokens: (1.0, 1.0), WORDS), WORDS, 4096)
        with torch.no_grad():
            seen = sum(weight * token_scores(part, batch)[0].sum() for part, weight in parts)
        share = token_scores(learner.decoder, batch)[0].sum() - seen
        logits[row.pair] = logits.get(row.pair, torch.zeros_like(share)) + row.advantages[0] * share
    loss = torch.stack([(logit - TARGET).square() for logit in logits.values()]).sum()
    learner.parameters.fresh.zero_()
    loss.backward()
    return learner.parameters.fresh.clone(), loss.item()


def test_the_gradient_is_that_of_the_formula():
    rows = joined(cuts("batch"))
    parts = [(decoder(9), 1 / 3), (decoder(10), 0.4), (decoder(11), 2 / 3 - 0.4)]
    gradient, loss = formula(rows, parts)
    learner = learner_of()
    stats = learner.accumulate(EPOCH, 0, b"", rows, 0.0, reference=LogLinearMixture(tuple(parts)))
    assert stats.loss_sum == pytest.approx(loss, rel=1e-9)
    assert relative(learner.accumulator.total, gradient) < 1e-12


def test_without_reference_and_opponents_the_lead_is_the_policys_own():
    rows = joined(cuts("batch"))
    gradient, loss = formula(rows, [])
    learner = learner_of(history=0, reference_share=0.0)
    assert learner.accumulate(EPOCH, 0, b"", rows, 0.0).loss_sum == pytest.approx(loss, rel=1e-9)
    assert relative(learner.accumulator.total, gradient) < 1e-12


def paired_rows(seed: int) -> list[TrainRow]:
    """Rows of which each two neighbours are a pair."""
    return [
        structs.replace(row, advantages=[(-1.0) ** number], pair=str(number // 2))
        for number, row in enumerate(make_rows(seed))
    ]


def taught(trainer: Trainer, versions: range, life: str = "a") -> tuple[list[StepReply], list[TrainStats]]:
    replies, stats = [], []
    for version in versions:
        stats.append(accumulate(trainer, version, paired_rows(version), f"{version}:{life}"))
        replies.append(step(trainer, [version], version + 1, f"{version}:{life}"))
    return replies, stats


def changes_of(durability: object = "every_step", **settings: object) -> dict:
    own = {"type": "online_dpo", "form": "mnpo", "beta": ETA, "round_steps": 2, **settings}
    return {
        "algorithm": {"loss": own, "advantage": {"type": "best_worst"}},
        "mechanisms": {"durability": durability},
    }


def test_a_run_is_seen_from_the_ends_of_its_last_rounds(tmp_path: Path):
    mixed, plain = make_trainer(tmp_path / "mnpo", **changes_of()), make_trainer(tmp_path / "ipo", **IPO)
    create(mixed)
    create(plain)
    ours, stats = taught(mixed, range(4))
    theirs, _ = taught(plain, range(4))
    assert stats[0].loss_sum / stats[0].z == pytest.approx(TARGET**2, rel=1e-6)
    assert [one.digest for one in ours[:2]] == [one.digest for one in theirs[:2]], "in its first round it is IPO"
    assert ours[3].digest != theirs[3].digest
    compared = mixed._references._compared["speaker"]
    assert compared.digests == {0: compared.digests[0], 4: ours[3].digest, 2: ours[1].digest}
    with torch.no_grad():
        words = compared.decoders[ours[3].digest].vocabulary
        [batch] = pack(blocks_of(paired_rows(7), lambda tokens: (1.0, 1.0), words), words, 4096)
        seen = mixed._references.get("speaker").scores(batch)[0]
        parts = [own.scores(batch)[0] for own in compared.decoders.values()]
    assert torch.allclose(seen, sum(parts) / 3, atol=1e-5)


IPO = changes_of(form="ipo")
IPO["algorithm"]["loss"].pop("round_steps")


@pytest.mark.parametrize("whole", [{"reference_share": 1.0}, {"round_steps": 50}], ids=["reference", "first round"])
def test_seen_from_one_version_alone_it_is_ipo_to_the_bit(tmp_path: Path, whole: dict):
    made = {}
    for name, changes in (("mnpo", changes_of(**whole)), ("ipo", IPO)):
        trainer = make_trainer(tmp_path / name, **changes)
        create(trainer)
        made[name] = [reply.digest for reply in taught(trainer, range(3))[0]]
    assert made["mnpo"] == made["ipo"]


LORA = {"policies": {"speaker": {"tuning": {"type": "lora", "rank": 4}}}}


@pytest.mark.parametrize(
    ("durability", "tuning"),
    [("every_step", {}), ({"type": "every_k", "every": 2}, LORA)],
    ids=["full", "second"],
)
def test_a_new_life_sees_each_step_from_what_the_last_one_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: object, tuning: dict
):
    """In rounds of two steps: the step taken again is of one round, and the next one begins another."""
    monkeypatch.setattr("workers.training.version_store.WEIGHTS_COUNT", 1)  # only what is claimed stays
    monkeypatch.setattr("workers.training.version_store.GRACE_S", 0.0)
    changes = {**changes_of(durability), **tuning}
    twin = make_trainer(tmp_path / "twin", **changes)
    create(twin)
    uninterrupted = taught(twin, range(9))[0][-1]
    trainer = make_trainer(tmp_path, **changes)
    digests = [create(trainer).digest]
    replies, _ = taught(trainer, range(7))
    digests += [reply.digest for reply in replies]
    seen = trainer._spec.algorithm.compared_with
    trainer.settle()
    later = make_trainer(tmp_path, "b", **changes)
    since = max(reply.version for reply in replies if reply.state)
    redo = [
        RedoStep(
            reply.version,
            reply.digest,
            2e-3,
            [RedoBatch(reply.version - 1, 0.05, paired_rows(reply.version - 1))],
            [digests[number] for number in seen(reply.version - 1)],
        )
        for reply in replies
        if reply.version > since
    ]
    base = replies[since - 1]
    near = [digests[number] for number in seen(7)]
    assert len(near) == 3
    request = BindRequest("speaker", 7, digests[7], base.state, base.digest if redo else "", redo, near)
    assert later.bind(request).version == 7
    assert taught(later, range(7, 9), "b")[0][-1].digest == uninterrupted.digest


def test_of_ends_of_rounds_those_are_kept_that_a_step_can_be_seen_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("workers.training.version_store.WEIGHTS_COUNT", 1)
    monkeypatch.setattr("workers.training.version_store.GRACE_S", 0.0)
    trainer = make_trainer(tmp_path, **changes_of())
    digests = [create(trainer).digest, *(reply.digest for reply in taught(trainer, range(13))[0])]
    trainer.settle()
    tier = LocalTier(tmp_path, "reader")
    kept = {version for version, digest in enumerate(digests) if tier.locate(digest)}
    assert {0, 6, 8, 10, 12} <= kept
    assert not kept & {1, 2, 3, 4, 5, 7, 9}


def test_a_trainer_without_one_of_its_opponents_refuses_the_policy(tmp_path: Path):
    trainer = make_trainer(tmp_path, **changes_of())
    created = create(trainer)
    replies, _ = taught(trainer, range(4))
    trainer.settle()
    last = replies[-1]
    for said in ([created.digest], [created.digest, last.digest, ""], [created.digest, last.digest, "0" * 64]):
        with refusal(RefusalCode.STATE):
            make_trainer(tmp_path, "b", **changes_of()).bind(
                BindRequest("speaker", 4, last.digest, last.state, references=said)
            )


MNPO = PAIRS | {"algorithm__loss__form": "mnpo", "algorithm__loss__round_steps": 3, "budget__train_steps": 9}


@pytest.mark.parametrize(
    ("changes", "pointer", "code"),
    [
        ({"algorithm__loss__round_steps": 9}, "/algorithm/loss/round_steps", "out_of_range"),
        (
            {"mechanisms__durability__type": "every_k", "mechanisms__durability__every": 4},
            "/algorithm/loss/round_steps",
            "out_of_range",
        ),
        ({"algorithm__loss__form": "ipo"}, "/algorithm/loss/round_steps", "not_read"),
        ({"algorithm__loss__history": 0}, "/algorithm/loss/round_steps", "not_read"),
        ({"algorithm__loss__form": "sigmoid", "algorithm__loss__history": 1}, "/algorithm/loss/history", "not_read"),
        (
            {"algorithm__loss__form": "ipo", "algorithm__loss__reference_share": 0.5},
            "/algorithm/loss/reference_share",
            "not_read",
        ),
        (
            {"algorithm__loss__history": 1, "algorithm__loss__newest_share": 0.7},
            "/algorithm/loss/newest_share",
            "not_read",
        ),
        (
            {"algorithm__loss__reference_share": 0.0, "algorithm__kl__reference": {"type": "renewed", "every": 2}},
            "/algorithm/kl/reference/type",
            "not_read",
        ),
        ({"algorithm__kl__coefficient": 0.1}, "/algorithm/kl/coefficient", "not_with_pairs"),
        ({"algorithm__advantage__type": "grpo"}, "/algorithm/advantage/type", "not_with_pairs"),
    ],
    ids=str,
)
def test_what_it_does_not_read_or_cannot_keep_is_refused(changes: dict, pointer: str, code: str):
    assert not broken_rules(make_spec(**MNPO))
    found = refusals(**(MNPO | changes))
    assert (pointer, code) in {(problem.pointer, problem.code) for problem in found}
