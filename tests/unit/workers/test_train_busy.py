"""What a trainer says of its work: when, and what it took of the processor."""

import time
from pathlib import Path

import pytest

from tests.unit.workers.test_train_trainer import accumulate, create, make_rows, make_spec, step
from workers.child import ChildInterval, IntervalLog
from workers.training.trainer import Trainer


def test_busy_time_is_reported_by_phase(tmp_path: Path):
    intervals = IntervalLog()
    trainer = Trainer(make_spec(), 1, "a", str(tmp_path), "cpu", intervals)
    create(trainer)
    told = accumulate(trainer, 1, make_rows(1))
    step(trainer, [1])
    made = intervals.flush()
    phases = [(interval.phase, interval.policy, interval.tokens) for interval in made]
    assert phases == [("bind", "speaker", 0), ("train", "speaker", 32), ("step", "speaker", 0)]
    assert all(interval.t0 <= interval.t1 for interval in made)
    assert told.seconds == pytest.approx(made[1].t1 - made[1].t0), "plans reckon with what the device was at work"


def gradient(home: Path, **changes: object) -> ChildInterval:
    """Return the interval of one, which says no more of the processor than all that was done took."""
    intervals = IntervalLog()
    trainer = Trainer(make_spec(**changes), 1, "a", str(home), "cpu", intervals)
    create(trainer)
    before = time.process_time()
    accumulate(trainer, 1, make_rows(1))
    took = time.process_time() - before
    made = intervals.flush()[-1]
    assert (made.phase, made.cpu <= took) == ("train", True)
    return made


def test_what_a_gradient_takes_of_the_processor_is_told_but_not_of_one_that_keeps_a_pace(tmp_path: Path):
    assert gradient(tmp_path / "own").cpu > 0.0
    assert gradient(tmp_path / "paced", resources={"pace": {"micro_batch_s": 0.05}}).cpu == 0.0
