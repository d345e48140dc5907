"""Durable training states: what of them is on disk after a step, and what is redone behind the last one."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import save

from tests.unit.workers.test_train_trainer import accumulate, create, make_rows, make_trainer, refusal, step, train
from workers.training.errors import RefusalCode
from workers.training.trainer import Trainer
from workers.training.wire import AccumulateRequest, BindRequest, RedoBatch, RedoStep, StepReply
from workers.transfer import LocalTier


def recorded(replies: list[StepReply], since: int) -> list[RedoStep]:
    """What the store tells of committed steps behind a version: `train` takes two micro-batches for each."""
    return [
        RedoStep(reply.version, reply.digest, 2e-3, [
            RedoBatch(number, 0.05, make_rows(number)) for number in (2 * reply.version - 1, 2 * reply.version - 2)
        ])
        for reply in replies if reply.version > since
    ]  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
@pytest.mark.parametrize("durability", [{"type": "every_k", "every": 3}, {"type": "async"}])
def test_steps_behind_the_last_training_state_are_redone_to_equal_bits(
    tmp_path: Path, durability: dict[str, object], precision: str
):
    changes = {"policies": {"speaker": {"precision": precision}}, "mechanisms": {"durability": durability}}
    trainer = make_trainer(tmp_path, **changes)
    created = create(trainer)
    replies = train(trainer, range(5))
    durable = {0: created.state} | {reply.version: reply.state for reply in replies if reply.state}
    for reply in replies:
        durable |= reply.durable
    by_type = {"every_k": [0, 3], "async": [0, 1, 2, 3, 4]}
    assert sorted(durable) == by_type[str(durability["type"])]
    since = max(durable)
    base = {reply.version: reply.digest for reply in replies}[since]
    [uninterrupted] = train(trainer, range(5, 6))
    trainer.settle()  # whoever comes next gives up what it finds half written
    later = make_trainer(tmp_path, "b", **changes)
    redo = recorded(replies, since)
    bound = later.bind(BindRequest("speaker", 5, replies[-1].digest, durable[since], base, redo))
    assert (bound.version, bound.digest, bound.created) == (5, replies[-1].digest, False)
    assert bound.state, "what was redone is durable at once"
    assert train(later, range(5, 6), "b")[0].digest == uninterrupted.digest


def test_weights_behind_the_last_training_state_stay_until_it_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("workers.training.version_store.WEIGHTS_COUNT", 1)
    trainer = make_trainer(tmp_path, mechanisms={"durability": {"type": "every_k", "every": 8}})
    replies = [create(trainer), *train(trainer, range(7))]
    trainer.settle()
    tier = LocalTier(tmp_path, "reader")
    assert all(tier.locate(reply.digest) for reply in replies)
    assert sum(bool(tier.locate(reply.state)) for reply in replies if reply.state) == 1
    replies += train(trainer, range(7, 8))
    trainer.settle()
    assert [bool(tier.locate(reply.digest)) for reply in replies] == [True] + [False] * 7 + [True]


def test_a_training_state_that_cannot_be_written_beside_fails_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trainer = make_trainer(tmp_path, mechanisms={"durability": "async"})
    create(trainer)
    [first] = train(trainer, range(1))
    trainer.settle()
    whole, beside = LocalTier.store, []

    def full(tier, encoded):
        beside.append(encoded.digest)
        if len(beside) == 2:  # weights go first, the training state behind them
            raise OSError("No space left on device")
        return whole(tier, encoded)

    monkeypatch.setattr(LocalTier, "store", full)
    [second] = train(trainer, range(1, 2))
    assert second.durable.keys() == {1}
    accumulate(trainer, 4, make_rows(4), "2:a")
    with pytest.raises(OSError, match="No space left"):
        step(trainer, [4], 3, "2:a")
    with refusal(RefusalCode.NOT_BOUND):
        accumulate(trainer, 4, make_rows(4), "2:a")
    later = make_trainer(tmp_path, "b", mechanisms={"durability": "async"})
    redo = recorded([first, second], 1)
    assert later.bind(BindRequest("speaker", 2, second.digest, second.durable[1], first.digest, redo)).version == 2


def test_versions_put_before_contents_were_cut_into_chunks_are_restored_under_their_names(tmp_path: Path):
    first = create(make_trainer(tmp_path / "new"))
    new = LocalTier(tmp_path / "new", "reader")
    (tmp_path / "old" / "state").mkdir(parents=True)

    def as_before(digest: str, meta: dict[str, object]) -> str:
        payload = save(new.get(digest), metadata={"meta": json.dumps(meta)})
        name, folder = hashlib.sha256(payload).hexdigest(), tmp_path / "old" / "state"
        (folder / f"{name}.safetensors").write_bytes(payload)
        (folder / f"{name}.json").write_text(json.dumps({"digest": name, "bytes": len(payload)}))
        (folder / f"{name}.claim.run-1-speaker").touch()
        return name

    weights = as_before(first.digest, {"kind": "weights"})
    state = as_before(first.state, {"kind": "training_state", "weights": weights})
    upgraded = make_trainer(tmp_path / "old", "b")
    bound = upgraded.bind(BindRequest("speaker", 0, weights, state))
    assert (bound.digest, bound.state) == (weights, state), "the platform knows them by these names"
    straight = make_trainer(tmp_path / "new", "b")
    straight.bind(BindRequest("speaker", 0, first.digest, first.state))
    assert [r.digest for r in train(upgraded, range(4), "b")] == [r.digest for r in train(straight, range(4), "b")]
    upgraded.settle()
    left = LocalTier(tmp_path / "old", "reader")
    assert left.locate(state) is None, "it went as any state that is too old"
    assert left.locate(weights) is not None


DECOUPLED = {
    "algorithm": {"loss": {"type": "decoupled_ppo"}},
    "mechanisms": {
        "trainer_protocol": "mini_batch",
        "lag_policy": {"bound": 3},
        "durability": {"type": "every_k", "every": 8},
    },
}


def test_later_steps_of_a_cohort_know_where_its_first_one_began_and_are_redone_so(tmp_path: Path):
    """Version 1 is the proximal one of the last step's rows, which version 0 said, or nobody tells."""
    rows = [msgspec.structs.replace(row, segments=[0, len(row.response) // 4]) for row in make_rows(3)]

    def taken(trainer: Trainer, version: int, proximal: int, incarnation: str = "a") -> StepReply:
        epoch = f"{version}:{incarnation}"
        trainer.accumulate(AccumulateRequest("speaker", epoch, version, 0.0, rows, proximal))
        return step(trainer, [version], version + 1, epoch)

    made = {}
    for proximal in (1, -1):
        trainer = make_trainer(tmp_path / str(proximal), **DECOUPLED)
        first = create(trainer)
        made[proximal] = [taken(trainer, version, -1) for version in (0, 1)] + [taken(trainer, 2, proximal)]
    assert made[1][2].digest != made[-1][2].digest, "part of the ratio is no weight, but may be clipped"
    redo = [RedoStep(one.version, one.digest, 2e-3, [RedoBatch(one.version - 1, 0.0, rows)]) for one in made[1]]
    redo[2].batches[0].proximal = 1
    twin = make_trainer(tmp_path / "twin", **DECOUPLED)
    create(twin)
    assert [taken(twin, version, 1 if version == 2 else -1).digest for version in range(3)][2] == made[1][2].digest
    uninterrupted = taken(twin, 3, 1)
    later = make_trainer(tmp_path / "1", "b", **DECOUPLED)
    assert later.bind(BindRequest("speaker", 3, made[1][2].digest, first.state, first.digest, redo)).version == 3
    assert taken(later, 3, 1, "b").digest == uninterrupted.digest
