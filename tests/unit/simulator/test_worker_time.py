"""Rollout workers' own time: what comes together goes off together, and what comes meanwhile waits."""

import pytest

from flexmarl.contracts.events import TimerFired
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.cores import Cores
from flexmarl.simulator.rollout.groups import EpisodeSlots
from flexmarl.simulator.rollout.worker_time import WorkerTime
from flexmarl.simulator.scenarios.scenario import Delays, Host


def test_a_worker_does_all_that_has_come_and_then_sends_it_off() -> None:
    clock, sent = Clock(), []
    hands = WorkerTime(clock, Delays(turn=1.0, workers=2), EpisodeSlots(None))

    def ask(key: int, name: str) -> None:
        hands.take(key, 1, lambda: sent.append((name, clock.now)))

    for name in "ab":
        ask(0, name)
    ask(1, "other")
    clock.at(0.5, ask, 0, "late")
    while clock.step():
        pass
    assert sent == [("other", 1.0), ("a", 2.0), ("b", 2.0), ("late", pytest.approx(3.0))]


def test_the_first_turns_of_a_command_go_off_before_another_one_is_begun_with() -> None:
    clock, sent = Clock(), []
    hands = WorkerTime(clock, Delays(turn=1.0), EpisodeSlots(None))

    def ask(name: str, command: int) -> None:
        hands.take(0, 1, lambda: sent.append((name, clock.now)), command)

    for name, command in (("a", 7), ("b", 7), ("c", 8), ("reply", 0), ("reply too", 0)):
        ask(name, command)
    while clock.step():
        pass
    assert sent == [("a", 2.0), ("b", 2.0), ("c", 3.0), ("reply", 5.0), ("reply too", 5.0)]


def test_the_rows_of_a_group_are_written_slower_while_cores_are_wanting() -> None:
    clock, told = Clock(), []
    cores = Cores(clock, Host(cores=1, playing=2.0), lambda: (True, False))
    hands = WorkerTime(cores, Delays(settle=0.5), EpisodeSlots(None))
    hands.settle(lambda _: told.append(clock.now), TimerFired())
    clock.at(1.0, cores.begin)
    clock.at(1.0, hands.settle, lambda _: told.append(clock.now), TimerFired())
    while clock.step():
        pass
    assert told == [0.5, pytest.approx(2.5)]
