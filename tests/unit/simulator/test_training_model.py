"""What a trainer's commands take, and what faults cost it, by hand."""

import pytest

from flexmarl.contracts import commands as c
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.wire import MicroBatchRef
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.cores import Cores
from flexmarl.simulator.devices.losses import DeviceLoss, Losses
from flexmarl.simulator.devices.trace import Trace
from flexmarl.simulator.devices.training import Training
from flexmarl.simulator.scenarios.scenario import Delays, Host, Machine, TrainerModel

TRAINER = TrainerModel(token=0.01, row=1.0, micro_batch=0.5, step=2.0, swap=3.0, create=5.0, form=7.0, checkpoint=11.0)


def training(**machine: float) -> Training:
    delays = Delays(carry=0.25, commit=0.5, fetch=1.0)
    clock = Clock()
    made = Training(clock, clock, Trace(), Machine(trainer=TRAINER, delays=delays, **machine), set(), lambda fact: None)
    made.cut(MicroBatchRef(policy="a", no=1), rows=3, tokens=100, new=100)
    return made


def bind(version: int | None, gang: tuple[int, ...] = ()) -> c.BindPolicy:
    return c.BindPolicy.model_construct(lease_id=1, policy="a", version=version, gang=gang)


ACCUMULATE = c.Accumulate.model_construct(lease_id=1, policy="a", micro_batch=1)
STEP = c.OptimizerStep.model_construct(lease_id=1, policy="a")


def test_a_gradient_is_shared_by_ranks_that_take_whole_rows():
    own = training()
    assert own._seconds(bind(None)) == 5.0
    assert own._seconds(ACCUMULATE) == pytest.approx(0.5 + 3 * 1.0 + 100 * 0.01)
    assert own._seconds(bind(4, gang=(1, 2))) == 3.0 + 7.0
    assert own._seconds(ACCUMULATE) == pytest.approx(0.5 + 2 * 1.0 + 50 * 0.01), "of three rows one rank has two"
    assert training(width=2.0)._seconds(ACCUMULATE) == pytest.approx(0.5 + 1.5 * 1.0 + 50 * 0.01)


def test_steps_checkpoints_and_what_a_node_does_around_them():
    own = training()
    assert own._seconds(STEP) == 2.0
    assert own._seconds(c.WriteCheckpoint.model_construct(lease_id=1)) == 11.0
    assert own._seconds(c.SuspendPolicy.model_construct(lease_id=1, policy="a")) == 3.0
    assert (own._around(ACCUMULATE, False), own._around(STEP, False)) == (0.25, 0.75)
    assert (own._around(ACCUMULATE, True), own._around(STEP, True)) == (1.25, 0.75)


def test_a_node_reads_ahead_while_its_trainer_works():
    own, done = training(), []
    own._told = lambda fact: done.append(own._clock.now)
    own.cut(MicroBatchRef(policy="a", no=2), rows=3, tokens=100, new=100)
    own.host(1, "life")
    for no in (1, 2):
        order = {"lease_id": 1, "policy": "a", "micro_batch": no, "accumulator": "0:life"}
        own.take(no, c.Accumulate.model_construct(kind="accumulate", **order))
    while own._clock.step():
        pass
    assert done == pytest.approx([1.25 + 4.5, 1.25 + 4.5 + 0.25 + 4.5])


def on_one_core(trainer: TrainerModel) -> list[tuple[str, float]]:
    """Let two trainers on one core make a gradient and a step each; return what they told, and when."""
    clock, done = Clock(), []
    cores = Cores(clock, Host(cores=1), lambda: (False, True))
    machine = Machine(trainer=trainer, delays=Delays(carry=0.25, commit=0.5))
    made = Training(clock, cores, Trace(), machine, set(), lambda fact: done.append((fact.kind, clock.now)))
    for lease, policy in ((1, "a"), (2, "b")):
        made.cut(MicroBatchRef(policy=policy, no=1), rows=3, tokens=100, new=100)
        made.host(lease, f"life {lease}")
        order = {"lease_id": lease, "policy": policy, "accumulator": "0:life"}
        made.take(lease, c.Accumulate.model_construct(kind="accumulate", micro_batch=1, **order))
        told = {"next_version": 1, "learning_rate": 0.1, "micro_batches": (1,)}
        made.take(lease + 2, c.OptimizerStep.model_construct(kind="optimizer_step", **order, **told))
    while clock.step():
        pass
    return done


@pytest.mark.parametrize(("declared", "gradient"), [(False, 2 * 4.5), (True, 4.5)])
def test_gradients_want_a_core_unless_they_keep_a_pace(declared: bool, gradient: float):
    """0.25 s of carrying and a gradient of 4.5 s; then 0.75 s around a step of 2 s, which waits for the disk."""
    trained, stepped = 0.25 + gradient, 0.25 + gradient + 0.75 + 2.0
    assert on_one_core(TRAINER.model_copy(update={"declared": declared})) == [
        ("micro_batch_accumulated", pytest.approx(trained)),
        ("micro_batch_accumulated", pytest.approx(trained)),
        ("step_committed", pytest.approx(stepped)),
        ("step_committed", pytest.approx(stepped)),
    ]


def test_a_gradient_that_is_computed_again_is_a_loss_of_tokens_and_time():
    losses = Losses()
    for seconds in (1.0, 2.0, 4.0):
        losses.computed(("a", 1), 100, seconds)
    losses.computed(("b", 1), 100, 8.0)
    assert (losses.redone_tokens, losses.redone_s) == (200, 6.0)


def test_a_device_that_is_gone_is_made_good_by_a_later_one_of_its_use():
    losses = Losses()
    losses.note(DeviceLoss(10.0, "node", DeviceUse.ENGINE, "d1", 1))
    losses.note(DeviceLoss(11.0, "child", DeviceUse.ENGINE, "d1", 1))
    assert len(losses.found) == 1, "its child died with it"
    losses.works(5, DeviceUse.ENGINE, 12.0)
    assert losses.found[0].back is None, "its lease may come back"
    losses.lease_ended(1)
    losses.works(6, DeviceUse.TRAINER, 13.0)
    assert losses.found[0].back is None, "another use"
    assert losses.lost_s(20.0) == 10.0
    losses.works(6, DeviceUse.ENGINE, 15.0)
    assert (losses.found[0].back, losses.recovery_s(), losses.lost_s(20.0)) == (15.0, 5.0, 5.0)
