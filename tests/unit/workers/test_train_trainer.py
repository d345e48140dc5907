"""The trainer's verbs: exact sets, idempotence, durability, restoration, refusals that change nothing."""

import errno
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.wire import TrainStats
from workers.child import IntervalLog
from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import (
    AccumulateRequest,
    BindReply,
    BindRequest,
    CheckpointRequest,
    StepReply,
    StepRequest,
    TrainRow,
)
from workers.transfer import LocalTier


def make_spec(**changes: object) -> ExperimentSpec:
    fields = {
        "agents": {"speaker": {}, "listener": {}},
        "environment": {"type": "reference_game"},
        "seed": 5,
    }
    return ExperimentSpec.model_validate(fields | changes)


def make_trainer(home: Path, incarnation: str = "a", **changes: object) -> Trainer:
    return Trainer(make_spec(**changes), 1, incarnation, str(home), "cpu", IntervalLog())


def create(trainer: Trainer, policy: str = "speaker") -> BindReply:
    return trainer.bind(BindRequest(policy, CREATE))


def make_rows(seed: int, count: int = 16) -> list[TrainRow]:
    rng = np.random.default_rng(seed)
    return [
        TrainRow(
            prompt=rng.integers(1, 20, 3).astype("<i4").tobytes(),
            response=rng.integers(1, 20, 2).astype("<i4").tobytes(),
            logprobs=np.full(2, -3.0, "<f4").tobytes(),
            allowed=b"",
            temperature=1.0,
            advantages=[float(rng.standard_normal())],
            weight=1.0,
        )
        for _ in range(count)
    ]


def accumulate(
    trainer: Trainer, number: int, rows: list[TrainRow], epoch: str = "0:a", policy: str = "speaker"
) -> TrainStats:
    reply = trainer.accumulate(AccumulateRequest(policy, epoch, number, 0.05, rows))
    return TrainStats(**reply.stats)


def step(
    trainer: Trainer, numbers: list[int], version: int = 1, epoch: str = "0:a", policy: str = "speaker"
) -> StepReply:
    return trainer.step(StepRequest(policy, epoch, numbers, version, 2e-3))


def refusal(code: RefusalCode):
    return pytest.raises(TrainerRefusal, match=f"^{code}:")


def train(trainer: Trainer, versions: range, incarnation: str = "a") -> list[StepReply]:
    replies = []
    for version in versions:
        epoch = f"{version}:{incarnation}"
        accumulate(trainer, 2 * version, make_rows(2 * version), epoch)
        accumulate(trainer, 2 * version + 1, make_rows(2 * version + 1), epoch)
        replies.append(step(trainer, [2 * version, 2 * version + 1], version + 1, epoch))
    return replies


def test_version_0_is_durable_seeded_and_made_once(tmp_path: Path):
    reply = create(make_trainer(tmp_path))
    assert (reply.version, reply.created) == (0, True)
    assert 80_000 < reply.facts["parameters"] < 95_000
    weights = LocalTier(tmp_path, "reader").get(reply.digest)
    assert sum(tensor.numel() for tensor in weights.values()) == reply.facts["parameters"]
    other = make_trainer(tmp_path / "other")
    assert create(other).digest == reply.digest
    assert create(other, "listener").digest != reply.digest
    assert create(make_trainer(tmp_path / "third", seed=6)).digest != reply.digest
    assert create(other) == create(other)


def test_step_needs_exactly_the_micro_batches_held(tmp_path: Path):
    trainer = make_trainer(tmp_path)
    create(trainer)
    accumulate(trainer, 1, make_rows(1))
    accumulate(trainer, 2, make_rows(2))
    for wrong in ([1], [1, 2, 3], [1, 3], []):
        with refusal(RefusalCode.OTHER_MICRO_BATCHES) as caught:
            step(trainer, wrong)
        assert (caught.value.accumulator, caught.value.micro_batches) == ("0:a", (1, 2))
    with refusal(RefusalCode.OTHER_VERSION):
        step(trainer, [1, 2], version=2)
    assert step(trainer, [2, 1]).version == 1


def test_step_asked_again_answers_the_same_and_moves_nothing(tmp_path: Path):
    trainer = make_trainer(tmp_path)
    created = create(trainer)
    accumulate(trainer, 1, make_rows(1))
    first = step(trainer, [1])
    assert first.digest != created.digest
    assert first.grad_norm > 0
    assert step(trainer, [1]) == first
    accumulate(trainer, 2, make_rows(2), "1:a")
    assert step(trainer, [1]) == first
    second = step(trainer, [2], 2, "1:a")
    alone = make_trainer(tmp_path / "alone")
    create(alone)
    accumulate(alone, 1, make_rows(1))
    step(alone, [1])
    accumulate(alone, 2, make_rows(2), "1:a")
    assert step(alone, [2], 2, "1:a").digest == second.digest
    with refusal(RefusalCode.OTHER_ACCUMULATOR):
        step(trainer, [1])


def test_a_micro_batch_asked_again_is_added_once(tmp_path: Path):
    trainer, once = make_trainer(tmp_path), make_trainer(tmp_path / "once")
    for each in (trainer, once):
        create(each)
    rows = make_rows(1)
    first = accumulate(trainer, 1, rows)
    assert accumulate(trainer, 1, rows[::-1]) == first.model_copy(update={"seconds": 0.0}), "it took nothing again"
    with refusal(RefusalCode.DUPLICATE):
        accumulate(trainer, 1, make_rows(2))
    accumulate(once, 1, rows)
    assert step(trainer, [1]).digest == step(once, [1]).digest


def test_other_epochs_are_refused(tmp_path: Path):
    trainer = make_trainer(tmp_path)
    create(trainer)
    for epoch in ("0:b", "1:a", ""):
        with refusal(RefusalCode.OTHER_ACCUMULATOR):
            accumulate(trainer, 1, make_rows(1), epoch)
    accumulate(trainer, 1, make_rows(1))
    step(trainer, [1])
    with refusal(RefusalCode.OTHER_ACCUMULATOR):
        accumulate(trainer, 2, make_rows(2), "0:a")


def test_null_step_commits_a_version_with_the_same_weights(tmp_path: Path):
    trainer = make_trainer(tmp_path)
    created = create(trainer)
    none = step(trainer, [])
    assert (none.version, none.null_step, none.grad_norm, none.digest) == (1, True, 0.0, created.digest)
    assert none.state == created.state
    empty = TrainRow(make_rows(1)[0].prompt, b"", b"", b"", 1.0, [2.0], 1.0)
    stats = accumulate(trainer, 1, [empty], "1:a")
    assert (stats.rows, stats.tokens, stats.z) == (1, 0, 0.0)
    assert accumulate(trainer, 2, [], "1:a").rows == 0
    assert step(trainer, [1, 2], 2, "1:a").null_step
    accumulate(trainer, 3, make_rows(3), "2:a")
    accumulate(trainer, 4, [], "2:a")
    assert not step(trainer, [3, 4], 3, "2:a").null_step


BAD = {
    "nan advantage": ({"advantages": [math.nan]}, RefusalCode.NONFINITE_ROW),
    "infinite weight": ({"weight": math.inf}, RefusalCode.NONFINITE_ROW),
    "nan log-probability": ({"logprobs": np.array([-1, np.nan], "<f4").tobytes()}, RefusalCode.NONFINITE_ROW),
    "greedy": ({"temperature": 0.0}, RefusalCode.MALFORMED_ROW),
    "nan temperature": ({"temperature": math.nan}, RefusalCode.NONFINITE_ROW),
    "no prompt": ({"prompt": b""}, RefusalCode.MALFORMED_ROW),
    "half an id": ({"prompt": b"\0\0\0"}, RefusalCode.MALFORMED_ROW),
    "too few log-probabilities": ({"logprobs": b"\0\0\0\0"}, RefusalCode.MALFORMED_ROW),
    "unknown word": ({"response": np.array([3, 999], "<i4").tobytes()}, RefusalCode.MALFORMED_ROW),
    "negative id": ({"prompt": np.array([-1], "<i4").tobytes()}, RefusalCode.MALFORMED_ROW),
    "forbidden word": ({"allowed": np.array([0], "<i4").tobytes()}, RefusalCode.MALFORMED_ROW),
    "mask outside": ({"allowed": np.arange(999, dtype="<i4").tobytes()}, RefusalCode.MALFORMED_ROW),
    "loss overflows": ({"advantages": [1e38], "weight": 1e38}, RefusalCode.NONFINITE_GRADIENT),
    "gradient overflows": ({"advantages": [1e37]}, RefusalCode.NONFINITE_GRADIENT),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_refuses_its_micro_batch_and_harms_nothing(name: str, tmp_path: Path):
    changes, code = BAD[name]
    trainer, clean = make_trainer(tmp_path), make_trainer(tmp_path / "clean")
    for each in (trainer, clean):
        create(each)
        accumulate(each, 1, make_rows(1))
    rows = make_rows(2)
    fields = {field: getattr(rows[3], field) for field in rows[3].__struct_fields__}
    with refusal(code) as caught:
        accumulate(trainer, 2, [*rows, TrainRow(**(fields | changes))])
    if code is not RefusalCode.NONFINITE_GRADIENT:
        assert "row 16" in caught.value.detail
        assert "1 of 17" in caught.value.detail
    assert step(trainer, [1]).digest == step(clean, [1]).digest


def test_restored_training_continues_with_equal_bits(tmp_path: Path):
    trainer = make_trainer(tmp_path)
    create(trainer)
    third = train(trainer, range(3))[-1]
    uninterrupted = train(trainer, range(3, 5))
    later = make_trainer(tmp_path, "b")
    bound = later.bind(BindRequest("speaker", 3, third.digest, third.state))
    assert (bound.version, bound.digest, bound.state, bound.created) == (3, third.digest, third.state, False)
    with refusal(RefusalCode.OTHER_ACCUMULATOR):
        accumulate(later, 6, make_rows(6), "3:a")
    continued = train(later, range(3, 5), "b")
    assert [(reply.digest, reply.state) for reply in continued] == [
        (reply.digest, reply.state) for reply in uninterrupted
    ]
    forgetful = make_trainer(tmp_path, "c")
    forgetful.bind(BindRequest("speaker", 3, third.digest, ""))
    assert train(forgetful, range(3, 4), "c")[0].digest != continued[0].digest


@pytest.mark.parametrize("precision", ["bf16", "fp64"])
def test_other_precisions_are_restored_with_equal_bits(tmp_path: Path, precision: str):
    policies = {"speaker": {"precision": precision}}
    trainer = make_trainer(tmp_path, policies=policies)
    create(trainer)
    second = train(trainer, range(2))[-1]
    later = make_trainer(tmp_path, "b", policies=policies)
    later.bind(BindRequest("speaker", 2, second.digest, second.state))
    assert train(later, range(2, 3), "b")[0].digest == train(trainer, range(2, 3))[0].digest


def test_binding_again_empties_the_accumulator(tmp_path: Path):
    trainer = make_trainer(tmp_path)
    created = create(trainer)
    accumulate(trainer, 1, make_rows(1))
    again = trainer.bind(BindRequest("speaker", 0, created.digest, created.state))
    assert (again.digest, again.state, again.created) == (created.digest, created.state, False)
    with refusal(RefusalCode.OTHER_MICRO_BATCHES):
        step(trainer, [1])
    accumulate(trainer, 1, make_rows(1))
    uncommitted = step(trainer, [1])
    trainer.bind(BindRequest("speaker", 0, created.digest, created.state))
    accumulate(trainer, 1, make_rows(1))
    assert step(trainer, [1]).digest == uncommitted.digest
    with refusal(RefusalCode.OTHER_VERSION):
        create(trainer)


def test_a_state_of_other_weights_and_a_missing_one_are_refused(tmp_path: Path):
    trainer = make_trainer(tmp_path)
    created = create(trainer)
    first, second = train(trainer, range(2))
    later = make_trainer(tmp_path, "b")
    for digest, state in ((first.digest, second.state), (created.digest, "0" * 64), ("0" * 64, first.state)):
        with refusal(RefusalCode.STATE):
            later.bind(BindRequest("speaker", 1, digest, state))
        with refusal(RefusalCode.NOT_BOUND):
            accumulate(later, 1, make_rows(1), "1:b")


def test_a_step_that_cannot_be_stored_is_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trainer = make_trainer(tmp_path)
    created = create(trainer)
    accumulate(trainer, 1, make_rows(1))
    with monkeypatch.context() as patch:
        patch.setattr(LocalTier, "store", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            step(trainer, [1])
    with refusal(RefusalCode.NOT_BOUND):
        step(trainer, [1])
    trainer.bind(BindRequest("speaker", 0, created.digest, created.state))
    accumulate(trainer, 1, make_rows(1))
    assert step(trainer, [1]).version == 1


@pytest.mark.parametrize(("least", "most"), [(0, 1e9), (1e5, 5e5), (5e5, 1e9)], ids=["both", "weights", "state"])
def test_a_full_disk_refuses_the_step_by_name_and_it_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: float, most: float
):
    trainer = make_trainer(tmp_path)
    created = create(trainer)
    accumulate(trainer, 1, make_rows(1))
    trainer.settle()
    before = sorted(path.name for path in (tmp_path / "state").iterdir())

    write = os.writev

    def full(descriptor: int, pieces: list[memoryview]) -> int:
        if least <= sum(map(len, pieces)) < most:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, pieces)

    with monkeypatch.context() as patch:
        patch.setattr("os.writev", full)
        with refusal(RefusalCode.STATE_FULL) as refused:
            step(trainer, [1])
    assert "no room left" in refused.value.detail
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == before
    trainer.bind(BindRequest("speaker", 0, created.digest, created.state))
    accumulate(trainer, 1, make_rows(1))
    assert step(trainer, [1]).version == 1


def test_a_policy_that_nobody_trains_is_held_and_never_stepped(tmp_path: Path):
    trainer = make_trainer(tmp_path, agents={"speaker": {"trainable": False}, "listener": {}})
    frozen = create(trainer)
    assert (frozen.state, frozen.version) == ("", 0)
    assert LocalTier(tmp_path, "reader").locate(frozen.digest)
    with refusal(RefusalCode.NOT_TRAINABLE):
        accumulate(trainer, 1, make_rows(1))
    with refusal(RefusalCode.NOT_TRAINABLE):
        step(trainer, [])
    later = make_trainer(tmp_path, "b", agents={"speaker": {"trainable": False}, "listener": {}})
    assert later.bind(BindRequest("speaker", 0, frozen.digest, "")).digest == frozen.digest


def test_agents_of_one_policy_share_its_batch_and_version(tmp_path: Path):
    both = {"speaker": {"policy": "team"}, "listener": {"policy": "team"}}
    trainer, joint = make_trainer(tmp_path, agents=both), make_trainer(tmp_path / "joint", agents=both)
    for each in (trainer, joint):
        create(each, "team")
        with refusal(RefusalCode.NOT_BOUND):
            create(each, "speaker")
    first = accumulate(trainer, 1, make_rows(1, 5), policy="team")
    second = accumulate(trainer, 2, make_rows(2, 11), policy="team")
    whole = accumulate(joint, 1, make_rows(1, 5) + make_rows(2, 11), policy="team")
    assert first.z + second.z == whole.z
    digests = [step(trainer, [1, 2], policy="team").digest, step(joint, [1], policy="team").digest]
    one, two = (
        LocalTier(home, "reader").get(digest)
        for home, digest in zip((tmp_path, tmp_path / "joint"), digests, strict=True)
    )
    for name, tensor in one.items():
        if not name.endswith("k_proj.bias"):  # its true gradient is 0: the optimizer amplifies what rounding leaves
            assert torch.allclose(two[name], tensor, rtol=1e-3, atol=1e-5), name


def test_old_versions_go_and_those_that_may_be_needed_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("workers.training.version_store.WEIGHTS_COUNT", 4)
    monkeypatch.setattr("workers.training.version_store.GRACE_S", 0.0)
    trainer = make_trainer(tmp_path)
    created = create(trainer)
    replies = [created, *train(trainer, range(2))]
    digests = {"speaker": replies[2].digest}
    trainer.checkpoint(CheckpointRequest("best", 2, {"speaker": 2}, digests))
    replies += train(trainer, range(2, 8))
    trainer.settle()
    tier = LocalTier(tmp_path, "reader")
    assert [bool(tier.locate(reply.digest)) for reply in replies] == [False] * 2 + [True] + [False] * 2 + [True] * 4
    assert [bool(tier.locate(reply.state)) for reply in replies] == [False] * 2 + [True] + [False] * 3 + [True] * 3
    later = make_trainer(tmp_path, "b")
    later.bind(BindRequest("speaker", 8, replies[8].digest, replies[8].state))
    replies += train(later, range(8, 10), "b")
    later.settle()
    assert [bool(tier.locate(reply.state)) for reply in replies[5:]] == [False] * 3 + [True] * 3
    later.checkpoint(CheckpointRequest("best", 9, {"speaker": 9}, {"speaker": replies[9].digest}))
    assert tier.locate(replies[2].digest) is not None, "what another checkpoint names stays with it"
    assert tier.locate(replies[2].state) is not None


def test_weights_of_a_restorable_version_stay_whatever_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("workers.training.version_store.WEIGHTS_COUNT", 1)
    trainer = make_trainer(tmp_path)
    replies = [create(trainer), *train(trainer, range(5))]
    trainer.settle()
    tier = LocalTier(tmp_path, "reader")
    assert [bool(tier.locate(reply.digest)) for reply in replies] == [False] * 3 + [True] * 3
    make_trainer(tmp_path, "b").bind(BindRequest("speaker", 3, replies[3].digest, replies[3].state))
