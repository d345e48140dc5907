"""A suspended policy goes on as if nothing had been, wherever its state lay."""

from pathlib import Path

import pytest
import torch

from tests.unit.workers.test_train_trainer import accumulate, create, make_rows, make_trainer, refusal, step, train
from workers.training import suspending
from workers.training.errors import RefusalCode
from workers.training.trainer import Trainer
from workers.training.wire import BindRequest, CheckpointRequest, SuspendRequest
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


def suspend(trainer: Trainer, policy: str = "speaker") -> int:
    return trainer.suspend(SuspendRequest(policy)).bytes


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
    size = suspend(trainer)
    assert suspend(trainer) == size, "asked again it answers the same"
    assert trainer._suspension.get("speaker").ticket.place == place
    accumulate(trainer, 1, make_rows(4), "0:a", "listener")  # another policy is trained on the same device
    suspend(trainer, "listener")
    assert accumulate(trainer, 9, make_rows(9), "2:a").rows == len(make_rows(9)), "it knows what is in"
    with refusal(RefusalCode.OTHER_MICRO_BATCHES):
        step(trainer, [9, 10], 3, "2:a")
    suspend(trainer)
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
    suspend(trainer)
    memory = trainer._held["listener"].learner.parameters.master.data_ptr()
    suspend(trainer, "listener")
    accumulate(trainer, 1, make_rows(1))
    used = trainer._held["speaker"].learner.parameters.master.data_ptr()
    assert (used == memory) == (place != "process")
    suspend(trainer)
    trainer.bind(BindRequest("speaker", 0, created.digest, created.state))
    assert not trainer._suspension._idle, "what lies idle goes before a new learner is made"


def test_verbs_meet_a_suspended_policy_as_they_would_a_held_one(tmp_path: Path, place: str):
    trainer = make_trainer(tmp_path)
    created = create(trainer)
    [first] = train(trainer, range(1))
    suspend(trainer)
    trainer.checkpoint(CheckpointRequest("best", 1, {"speaker": 1}, {"speaker": first.digest}))
    assert trainer._suspension.get("speaker"), "an export leaves it where it is"
    bound = trainer.bind(BindRequest("speaker", 1, first.digest, first.state))
    assert (bound.digest, bound.state) == (first.digest, first.state)
    suspend(trainer)
    assert trainer.bind(BindRequest("speaker", 0, created.digest, created.state)).version == 0
    accumulate(trainer, 1, make_rows(1))
    trainer.let_go("speaker")
    with refusal(RefusalCode.NOT_BOUND):
        suspend(trainer)


@pytest.mark.parametrize("place", ["host_memory"], indirect=True)
def test_a_suspended_state_that_was_harmed_is_never_used(tmp_path: Path, place: str):
    trainer = make_trainer(tmp_path)
    create(trainer)
    [first] = train(trainer, range(1))
    suspend(trainer)
    [payload] = (tmp_path / "shm").glob("*/*.payload")
    content = bytearray(payload.read_bytes())
    content[len(content) // 2] ^= 1
    with payload.open("r+b") as file:
        file.write(content)
    with refusal(RefusalCode.NOT_BOUND):
        accumulate(trainer, 5, make_rows(5), "1:a")
    trainer.bind(BindRequest("speaker", 1, first.digest, first.state))
    weights = trainer._held["speaker"].learner.parameters.named()
    durable = LocalTier(tmp_path, "reader").get(first.digest)
    assert all(torch.equal(weights[name], tensor) for name, tensor in durable.items())


def test_no_room_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suspending, "MEMORY", tmp_path / "none")
    monkeypatch.setattr(suspending, "DiskShelter", lambda _: OwnMemory(0))
    monkeypatch.setattr(suspending, "OwnMemory", lambda _: OwnMemory(0))
    trainer = make_trainer(tmp_path)
    create(trainer)
    accumulate(trainer, 1, make_rows(1))
    with refusal(RefusalCode.STATE):
        suspend(trainer)
    assert step(trainer, [1]).version == 1
