"""The policy that training is kept near to: its first version, for every life of a trainer."""

from pathlib import Path

import pytest

from tests.unit.workers.test_train_durability import recorded
from tests.unit.workers.test_train_trainer import accumulate, create, make_rows, make_trainer, refusal, train
from workers.training.errors import RefusalCode
from workers.training.wire import BindRequest
from workers.transfer import LocalTier

KEPT = {"algorithm": {"kl": {"coefficient": 0.5, "estimator": "k3"}}}
LORA = {"policies": {"speaker": {"tuning": {"type": "lora", "rank": 4}}}}


def test_the_first_step_is_taken_where_the_reference_is_and_the_next_ones_leave_it(tmp_path: Path):
    trainer, plain = make_trainer(tmp_path / "kept", **KEPT), make_trainer(tmp_path / "free")
    create(trainer)
    create(plain)
    first = accumulate(trainer, 0, make_rows(0))
    assert first.kl_reference_sum == pytest.approx(0.0, abs=1e-9)
    trainer.bind(BindRequest("speaker", -1))  # empties the accumulator
    kept, free = train(trainer, range(3)), train(plain, range(3))
    assert kept[0].digest == free[0].digest, "nothing pulls at the reference itself"
    assert kept[2].digest != free[2].digest
    assert accumulate(trainer, 6, make_rows(6), "3:a").kl_reference_sum > 0.0
    assert accumulate(plain, 6, make_rows(6), "3:a").kl_reference_sum == 0.0


@pytest.mark.parametrize("tuning", [{}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("durability", ["every_step", {"type": "every_k", "every": 3}])
def test_a_new_life_keeps_near_the_same_policy(tmp_path: Path, durability: object, tuning: dict):
    changes = {**KEPT, **tuning, "mechanisms": {"durability": durability}}
    trainer = make_trainer(tmp_path, **changes)
    created = create(trainer)
    replies = train(trainer, range(4))
    [uninterrupted] = train(trainer, range(4, 5))
    trainer.settle()
    later = make_trainer(tmp_path, "b", **changes)
    since = max(reply.version for reply in replies if reply.state)
    base = replies[since - 1]
    redo = recorded(replies, since)
    for step in redo:
        step.references = [created.digest]
    request = BindRequest("speaker", 4, replies[-1].digest, base.state, base.digest, redo, [created.digest])
    assert later.bind(request).version == 4
    assert train(later, range(4, 5), "b")[0].digest == uninterrupted.digest


def test_the_first_version_stays_on_disk_for_as_long_as_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("workers.training.version_store.WEIGHTS_COUNT", 1)
    trainer = make_trainer(tmp_path, **KEPT)
    created = create(trainer)
    replies = train(trainer, range(5))
    trainer.settle()
    tier = LocalTier(tmp_path, "reader")
    assert tier.locate(created.digest)
    assert not tier.locate(replies[0].digest)


def test_a_trainer_that_cannot_find_the_reference_refuses_the_policy(tmp_path: Path):
    trainer = make_trainer(tmp_path, **KEPT)
    create(trainer)
    [reply] = train(trainer, range(1))
    trainer.settle()
    for unknown in ([], [""], ["0" * 64]):
        with refusal(RefusalCode.STATE):
            make_trainer(tmp_path, "b", **KEPT).bind(
                BindRequest("speaker", 1, reply.digest, reply.state, references=unknown)
            )


def test_a_reference_has_no_gradient_of_its_own(tmp_path: Path):
    trainer = make_trainer(tmp_path, **KEPT)
    create(trainer)
    train(trainer, range(2))
    reference = trainer._references.get("speaker")
    assert not reference._embed.requires_grad
    assert reference._parameters.fresh.numel() == 0


RENEWED = {"algorithm": {"kl": {"coefficient": 0.5, "reference": {"type": "renewed", "every": 2}}}}
NAMED = {"algorithm": {"kl": {"coefficient": 0.5, "reference": {"type": "version", "version": 3}}}}


def pulls(trainer, version: int) -> float:
    """How far a version is from what it is compared with, in a micro-batch that is thrown away again."""
    found = accumulate(trainer, 90 + version, make_rows(3), f"{version}:a").kl_reference_sum
    held = trainer._held["speaker"]
    trainer.bind(BindRequest("speaker", version, held.stored.weights, held.stored.state))
    return found


@pytest.mark.parametrize(("changes", "own"), [(RENEWED, {0, 2, 4}), (NAMED, {0, 3})], ids=["renewed", "named"])
def test_a_version_that_becomes_the_reference_is_not_pulled_at(tmp_path: Path, changes: dict, own: set[int]):
    trainer = make_trainer(tmp_path, **changes)
    create(trainer)
    for version in range(6):
        assert (pulls(trainer, version) == pytest.approx(0.0, abs=1e-9)) == (version in own), version
        train(trainer, range(version, version + 1))


@pytest.mark.parametrize("tuning", [{}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("reference", [RENEWED, NAMED], ids=["renewed", "named"])
@pytest.mark.parametrize("durability", ["every_step", {"type": "every_k", "every": 2}], ids=["each", "second"])
def test_a_new_life_compares_each_step_with_what_the_last_one_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: object, reference: dict, tuning: dict
):
    monkeypatch.setattr("workers.training.version_store.WEIGHTS_COUNT", 1)  # only what is claimed stays
    monkeypatch.setattr("workers.training.version_store.GRACE_S", 0.0)
    changes = {**reference, **tuning, "mechanisms": {"durability": durability}}
    twin = make_trainer(tmp_path / "twin", **changes)
    create(twin)
    uninterrupted = train(twin, range(6))[-1]
    trainer = make_trainer(tmp_path, **changes)
    digests = [create(trainer).digest]
    replies = train(trainer, range(5))
    digests += [reply.digest for reply in replies]
    of = trainer._spec.algorithm.reference_of
    trainer.settle()
    later = make_trainer(tmp_path, "b", **changes)
    since = max(reply.version for reply in replies if reply.state)
    redo = recorded(replies, since)
    for step in redo:
        step.references = [digests[of(step.version - 1)]]
    base = replies[since - 1]
    request = BindRequest("speaker", 5, digests[5], base.state, base.digest, redo, [digests[of(5)]])
    assert later.bind(request).version == 5
    assert train(later, range(5, 6), "b")[0].digest == uninterrupted.digest


def test_a_version_that_is_given_up_after_it_became_the_reference_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A step that was stored and never committed: its trainer is bound again at the version before."""
    monkeypatch.setattr("workers.training.version_store.WEIGHTS_COUNT", 1)
    monkeypatch.setattr("workers.training.version_store.GRACE_S", 0.0)
    kl = {"coefficient": 0.5, "reference": {"type": "renewed", "every": 4}}
    trainer = make_trainer(tmp_path, algorithm={"kl": kl})
    create(trainer)
    replies = train(trainer, range(8))
    trainer.settle()
    fourth, seventh = replies[3], replies[6]
    later = make_trainer(tmp_path, "b", algorithm={"kl": kl})
    later.bind(BindRequest("speaker", 7, seventh.digest, seventh.state, references=[fourth.digest]))
    assert train(later, range(7, 8), "b")[0].digest == replies[7].digest, "the same step, compared with the same"
