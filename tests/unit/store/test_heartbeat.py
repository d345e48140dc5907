"""The heartbeat thread: what it says of loops, and that it harms nobody."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexmarl.launcher.heartbeats import Beat, parse
from flexmarl.store.control import heartbeat as module
from flexmarl.store.control.heartbeat import BEAT_S, Heartbeat, Loop
from flexmarl.store.control.process_heartbeats import ProcessFacts, ProcessState


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_a_loop_is_stuck_when_it_does_not_turn_within_its_bound() -> None:
    loop = Loop("loop", 3.0)
    for _ in range(10):
        loop.look(1.0)
    assert not loop.stuck, "it has never turned: it is starting"
    loop.turned()
    for _ in range(3):
        loop.look(1.0)
    assert not loop.stuck
    loop.look(1.0)
    assert loop.stuck
    loop.turned()
    loop.look(1.0)
    assert (loop.stuck, loop.still_s) == (False, 0.0)


def test_a_process_that_was_stopped_blames_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps while the process stands; the loop gets its turn only after the first beat."""
    heartbeat = Heartbeat("test")
    heartbeat.watch("loop", 60.0)()
    now = iter([0.0, 0.5, 3600.0, 3600.5])
    waits = iter([False, False, False, True])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(heartbeat._stopping, "wait", lambda seconds: next(waits))
    heartbeat._beat()
    slowest = heartbeat.slowest()
    assert slowest is not None
    assert slowest.still_s <= 3 * BEAT_S


def test_the_slowest_loop_is_the_one_nearest_to_its_bound(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    heartbeat = Heartbeat("test", descriptor=writer)
    quick, patient = Loop("quick", 10.0), Loop("patient", 1000.0)
    quick.still_s, patient.still_s = 5.0, 100.0
    heartbeat._loops.update({"quick": quick, "patient": patient})
    heartbeat._tell(heartbeat.slowest())
    assert parse(os.read(reader, 100)) == Beat(5.0, 10.0, "quick")


def test_a_supervisor_that_does_not_read_holds_nobody_up(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    heartbeat = Heartbeat("test", descriptor=writer)
    began = time.monotonic()
    for _ in range(10_000):
        heartbeat._tell(None)
    os.close(reader)
    heartbeat._tell(None)
    assert time.monotonic() - began < 30.0


@pytest.mark.parametrize("descriptor", [-1, 9999])
def test_a_descriptor_that_is_no_pipe_is_left_alone(descriptor: int) -> None:
    Heartbeat("test", descriptor=descriptor)._tell(None)


def test_a_file_in_the_place_of_the_pipe_is_not_written_to(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        Heartbeat("test", descriptor=file.fileno())._tell(None)
        assert file.tell() == 0


def test_a_place_has_one_row_per_kind_and_others_one_per_process() -> None:
    assert ProcessFacts("driver", "box", "box@/home", 7, 0.0).id == "box@/home/driver"
    assert ProcessFacts("driver", "box", "", 7, 0.0).id == "box/driver/7"


@pytest.mark.parametrize(("silent_s", "loop", "state"), [
    (1.0, "", "running"), (1.0, "loop", "stuck"), (60.0, "", "silent"), (60.0, "loop", "silent"),
])  # fmt: skip
def test_states(silent_s: float, loop: str, state: str) -> None:
    assert ProcessState("driver", "box", 7, 0.0, silent_s, loop, 99.0).state == state
