"""A suspended policy goes on as if nothing had been, wherever its state lay."""

from pathlib import Path

import pytest
import torch

from tests.unit.workers.test_train_trainer import accumulate, create, make_rows, make_trainer, refusal, step, train
from workers.training import suspending
from workers.training.errors import RefusalCode
from workers.training.trainer import Trainer
from workers.training.wire import BindRequest, CheckpointRequest, SuspendReply, SuspendRequest
from workers.transfer import LocalTier
from workers.transfer.plane import OwnMemory

PLACES = ["host_memory", "process", "disk"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The fastest place that has room."""
    memory = tmp_path / "shm"
    if request.param == "host_memory":
        memory.mkdir()
    monkeypatch.setattr(suspending, "MEMORY", memory)
    if request.param == "disk":
        monkeypatch.setattr(suspending, "OwnMemory", lambda _: OwnMemory(0))
    return request.param


def suspend(trainer: Trainer, policy: str = "speaker", accumulator: str = "", reach: str = "process") -> SuspendReply:
    held = trainer._held.get(policy)
    epoch = accumulator or (held.learner.accumulator.epoch if held else trainer._suspension.get(policy).accumulator)
    return trainer.suspend(SuspendRequest(policy, epoch, reach))


def resume(trainer: Trainer, left: SuspendReply, version: int, digest: str, policy: str = "speaker", was: str = "a"):
    asked = BindRequest(
        policy, version, digest, resume=left.ticket, accumulator=f"{version}:{was}", references=[digest]
    )
    return trainer.bind(asked)


@pytest.mark.parametrize("settings", [{}, {"precision": "bf16"}, {"tuning": {"type": "lora", "rank": 2}}])
def test_it_steps_to_the_same_bits_with_the_accumulator_it_had(tmp_path: Path, place: str, settings: dict):
    policies = {"speaker": settings, "listener": settings}
    trainer = make_trainer(tmp_path / "a", policies=policies)
    straight = make_trainer(tmp_path / "b", policies=policies)
    for each in (trainer, straight):
        create(each)
        create(each, "listener")
        train(each, range(2))
        accumulate(each, 9, make_rows(9), "2:a")
    digests = {name: held.stored.weights for name, held in trainer._held.items()}
    left = suspend(trainer)
    assert suspend(trainer, accumulator="2:a") == left, "asked again it answers the same"
    assert f'"place":"{place}"' in left.ticket
    accumulate(trainer, 1, make_rows(4), "0:a", "listener")  # another policy is trained on the same device
    other = suspend(trainer, "listener")
    back = resume(trainer, left, 2, digests["speaker"])
    assert back.resumed
    assert resume(trainer, left, 2, digests["speaker"]) == back, "asked again it is there already"
    assert accumulate(trainer, 9, make_rows(9), "2:a").rows == len(make_rows(9)), "it knows what is in"
    with refusal(RefusalCode.OTHER_MICRO_BATCHES):
        step(trainer, [9, 10], 3, "2:a")
    left = suspend(trainer)
    resume(trainer, left, 2, digests["speaker"])
    resume(trainer, other, 0, digests["listener"], "listener")
    accumulate(trainer, 10, make_rows(10), "2:a")
    accumulate(straight, 10, make_rows(10), "2:a")
    one, two = step(trainer, [9, 10], 3, "2:a"), step(straight, [9, 10], 3, "2:a")
    assert (one.digest, one.state) == (two.digest, two.state)
    accumulate(straight, 1, make_rows(4), "0:a", "listener")
    one, two = (step(each, [1], policy="listener") for each in (trainer, straight))
    assert (one.digest, one.state) == (two.digest, two.state)


def test_memory_of_a_policy_that_left_serves_the_next(tmp_path: Path, place: str):
    trainer = make_trainer(tmp_path)
    created = create(trainer)
    create(trainer, "listener")
    left = suspend(trainer)
    memory = trainer._held["listener"].learner.parameters.master.data_ptr()
    suspend(trainer, "listener")
    resume(trainer, left, 0, created.digest)
    used = trainer._held["speaker"].learner.parameters.master.data_ptr()
    assert (used == memory) == (place != "process")
    suspend(trainer)
    trainer.bind(BindRequest("speaker", 0, created.digest, created.state))
    assert not trainer._suspension._idle, "what lies idle goes before a new learner is made"


def test_verbs_meet_a_suspended_policy_as_one_that_is_not_there(tmp_path: Path, place: str):
    trainer = make_trainer(tmp_path)
    created = create(trainer)
    [first] = train(trainer, range(1))
    left = suspend(trainer)
    trainer.checkpoint(CheckpointRequest("best", 1, {"speaker": 1}, {"speaker": first.digest}))
    with refusal(RefusalCode.NOT_BOUND):
        accumulate(trainer, 1, make_rows(1), "1:a")
    with refusal(RefusalCode.OTHER_ACCUMULATOR):
        resume(trainer, left, 1, first.digest, was="b")
    assert trainer.bind(BindRequest("speaker", 0, created.digest, created.state)).version == 0
    with refusal(RefusalCode.OTHER_ACCUMULATOR):
        suspend(trainer, accumulator="1:a")
    accumulate(trainer, 1, make_rows(1))
    trainer.let_go("speaker")
    with refusal(RefusalCode.NOT_BOUND):
        suspend(trainer, accumulator="0:a")


@pytest.mark.parametrize("reach", ["host", "cluster"])
@pytest.mark.parametrize("settings", [{}, {"tuning": {"type": "lora", "rank": 2}}])
def test_another_trainer_takes_a_policy_up_and_steps_to_the_same_bits(tmp_path: Path, reach: str, settings: dict):
    policies = {"speaker": settings, "listener": settings}
    here, there = (make_trainer(tmp_path, incarnation=life, policies=policies) for life in ("t1.1.1", "t2.1.1"))
    straight = make_trainer(tmp_path / "b", policies=policies)
    created = create(here)
    create(straight)
    accumulate(here, 1, make_rows(1), "0:t1.1.1")
    accumulate(straight, 1, make_rows(1))
    left = suspend(here, reach=reach)
    assert resume(there, left, 0, created.digest, was="t1.1.1").resumed
    accumulate(there, 2, make_rows(2), "0:t2.1.1")
    accumulate(straight, 2, make_rows(2))
    one, two = step(there, [1, 2], epoch="0:t2.1.1"), step(straight, [1, 2])
    assert (one.digest, one.state) == (two.digest, two.state)
    back = suspend(there, reach=reach)
    assert resume(here, back, 1, one.digest, was="t2.1.1").state == one.state
    again = suspend(here, reach=reach)
    claims = [path.name for path in (tmp_path / "state").glob("*suspended*")]
    assert len(claims) == (reach == "cluster"), f"what was taken up is given back: {claims}"
    assert left.bytes == back.bytes == again.bytes


@pytest.mark.parametrize("place", ["host_memory"], indirect=True)
def test_a_suspended_state_that_was_harmed_is_never_used(tmp_path: Path, place: str):
    trainer = make_trainer(tmp_path)
    create(trainer)
    [first] = train(trainer, range(1))
    left = suspend(trainer)
    [payload] = (tmp_path / "shm").glob("*/*.payload")
    content = bytearray(payload.read_bytes())
    content[len(content) // 2] ^= 1
    with payload.open("r+b") as file:
        file.write(content)
    with refusal(RefusalCode.STATE):
        resume(trainer, left, 1, first.digest)
    trainer.bind(BindRequest("speaker", 1, first.digest, first.state))
    weights = trainer._held["speaker"].learner.parameters.named()
    durable = LocalTier(tmp_path, "reader").get(first.digest)
    assert all(torch.equal(weights[name], tensor) for name, tensor in durable.items())


def test_no_room_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suspending, "MEMORY", tmp_path / "none")
    monkeypatch.setattr(suspending, "DiskShelter", lambda *_: OwnMemory(0))
    monkeypatch.setattr(suspending, "OwnMemory", lambda _: OwnMemory(0))
    trainer = make_trainer(tmp_path)
    create(trainer)
    accumulate(trainer, 1, make_rows(1))
    with refusal(RefusalCode.STATE_FULL):
        suspend(trainer)
    assert step(trainer, [1]).version == 1
