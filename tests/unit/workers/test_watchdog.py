"""A child that hangs is told from one that works long, by what can be seen of it from outside."""

import pytest

from workers.child import ChildHealth, IntervalLog
from workers.lives import (
    DEATHS,
    HANG_WINDOW_S,
    HANGS,
    MEMORY,
    MEMORY_WINDOW_S,
    START_WINDOW_S,
    STARTS,
    YOUNG,
    YOUNG_S,
    Lives,
)
from workers.watchdog import SILENT_PROBES, WATCHED_S, ChildObservation, Watchdog

STUCK_S = 60.0
WORKING, IDLE = True, False


def health(beats, working=WORKING):
    return ChildHealth("trainer", "t1.1.1", 1, working, beats)


def verdicts(looks, every_s=2.0):
    """Judge looks of (health, processor seconds since the last one), one every two seconds."""
    watchdog, cpu, said = Watchdog(STUCK_S), 0.0, []
    for number, (answer, used) in enumerate(looks):
        cpu += used
        said.append(watchdog.judge(ChildObservation(number * every_s, answer, cpu)))
    return said


def first(said):
    """Return the number of the look that brought the verdict, and the verdict."""
    return next(((number, text) for number, text in enumerate(said) if text), (None, ""))


def test_a_stopped_child_hangs_after_so_many_silent_probes() -> None:
    at, said = first(verdicts([(health(1), 1.0)] + [(None, 0.0)] * 20))
    assert at == SILENT_PROBES
    assert "without an answer and without processor time" in said


def test_a_stopped_child_that_had_nothing_to_do_hangs_too() -> None:
    assert first(verdicts([(health(1, IDLE), 0.0)] + [(None, 0.0)] * 20))[0] == SILENT_PROBES


def test_one_that_computes_without_answering_has_until_it_counts_as_stuck() -> None:
    at, said = first(verdicts([(health(1), 1.0)] + [(None, 1.5)] * 60))
    assert at == STUCK_S / 2.0
    assert "no progress for 60 s, computing throughout" in said


def test_silence_counts_only_while_it_lasts() -> None:
    looks = ([(None, 0.0)] * (SILENT_PROBES - 1) + [(None, 0.5)]) * 5
    assert first(verdicts([(health(1), 0.0), *looks]))[0] is None


def test_work_without_a_piece_done_is_stuck_whatever_it_answers() -> None:
    at, said = first(verdicts([(health(7), 0.0)] * 60))
    assert at == STUCK_S / 2.0 + 1, "the first look only learns where the work stands"
    assert "waiting throughout" in said


@pytest.mark.parametrize(
    "looks",
    [
        [(health(number), 2.0) for number in range(200)],
        [(health(5, IDLE), 0.0)] * 200,
        [(health(number // 20), 0.0) for number in range(200)],
        [(health(1) if number % SILENT_PROBES == 0 else None, 0.0) for number in range(25)],
    ],
    ids=["at work", "idle", "a piece every 40 s", "answers now and then"],
)
def test_a_child_that_works_or_waits_is_left_alone(looks) -> None:
    assert first(verdicts(looks))[0] is None


def test_a_host_that_stood_still_blames_nobody() -> None:
    """Ten minutes between two looks are not ten minutes of watching."""
    assert WATCHED_S * 5 < STUCK_S
    assert first(verdicts([(health(1), 0.0)] * 5, every_s=600.0))[0] is None


def test_closed_work_is_a_beat_and_open_work_shows() -> None:
    log = IntervalLog()
    assert (log.progress.working, log.progress.beats) == (False, 0)
    with log.progress.work(), log.progress.work():
        assert log.progress.working
    assert not log.progress.working
    log.add("train", "speaker", 1.0, 2.0)
    assert log.progress.beats == 1


def test_hangs_are_remembered_longer_than_deaths() -> None:
    lives = Lives()
    assert [lives.lost(100.0 * number, hung=True) for number in range(HANGS - 1)] == [""] * (HANGS - 1)
    assert lives.lost(100.0 * HANGS, hung=True) == f"{HANGS} times in {HANG_WINDOW_S:.0f} s"
    slow = Lives()
    assert not any(slow.lost(HANG_WINDOW_S * number, hung=True) for number in range(10))
    dying = Lives()
    assert [bool(dying.lost(1.0 * number, hung=False)) for number in range(DEATHS)] == [False] * (DEATHS - 1) + [True]
    assert dying.pause_s(5.0) > lives.pause_s(500.0)


def test_a_child_that_never_gets_ready_is_given_up_however_long_each_start_takes() -> None:
    slow = Lives()
    found = [slow.lost(100.0 * number, hung=False, ready_s=None) for number in range(STARTS)]
    assert found == [""] * (STARTS - 1) + [f"{STARTS} times in {START_WINDOW_S:.0f} s"]
    mended = Lives()
    for number in range(3 * STARTS):
        worked = number % STARTS == STARTS - 1
        assert not mended.lost(100.0 * number, hung=False, ready_s=YOUNG_S if worked else None)


def test_a_child_that_is_slow_to_start_and_dies_soon_after_is_given_up() -> None:
    """Each life takes half a minute, so it never dies five times within a minute."""
    brief = Lives()
    found = [brief.lost(30.0 * number, hung=False, ready_s=YOUNG_S - 1) for number in range(YOUNG)]
    assert found[:-1] == [""] * (YOUNG - 1)
    assert found[-1] == f"{YOUNG} times in a row within {YOUNG_S:.0f} s of being ready"
    lasting = Lives()
    for number in range(3 * YOUNG):
        assert not lasting.lost(30.0 * number, hung=False, ready_s=YOUNG_S if number % YOUNG == YOUNG - 1 else 5.0)


def test_deaths_for_memory_have_the_lowest_limit() -> None:
    lives = Lives()
    found = [lives.lost(600.0 * number, hung=False, memory=True) for number in range(MEMORY)]
    assert found == [""] * (MEMORY - 1) + [f"{MEMORY} times in {MEMORY_WINDOW_S:.0f} s"]
    seldom = Lives()
    assert not any(seldom.lost(MEMORY_WINDOW_S * number, hung=False, memory=True) for number in range(10))
