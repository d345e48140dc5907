"""Busy time of alternating policies as few closed intervals with exact totals."""

import pytest

from workers.child import IntervalLog
from workers.rollout.engines.busy import STRETCH_S, BusyTime


def test_alternating_steps_become_one_interval_per_policy_with_exact_totals() -> None:
    log = IntervalLog()
    busy = BusyTime(log)
    now = 100.0
    for step in range(1, 21):
        busy.add("a", now, now + 0.003, 5, 7 * step, 0.002)
        busy.add("b", now + 0.003, now + 0.004, 2, 7 * step, 0.001)
        now += 0.0045
    busy.close()
    a, b = log.flush()
    assert (a.policy, b.policy, a.tokens, b.tokens) == ("a", "b", 100, 40)
    assert (a.steps, b.steps, a.prompts, b.prompts) == (20, 20, 140, 0)
    assert a.t1 - a.t0 == pytest.approx(0.06)
    assert b.t1 - b.t0 == pytest.approx(0.02)
    assert (a.cpu, b.cpu) == (pytest.approx(0.04), pytest.approx(0.02))
    assert 100.0 == a.t0 < a.t1 == b.t0 < b.t1 <= now


def test_a_pause_closes_the_stretch_and_a_long_one_is_cut() -> None:
    log = IntervalLog()
    busy = BusyTime(log)
    busy.add("a", 10.0, 10.01, 1, cpu=0.004)
    busy.add("a", 10.5, 10.51, 1)
    for step in range(100):
        busy.add("a", 20.0 + step * 0.01, 20.01 + step * 0.01, 1, cpu=0.004)
    busy.close()
    busy.close()
    found = log.flush()
    assert [interval.ord for interval in found] == list(range(len(found)))
    assert sum(interval.tokens for interval in found) == 102
    assert sum(interval.cpu for interval in found) == pytest.approx(101 * 0.004), "merged ones too"
    assert sum(interval.t1 - interval.t0 for interval in found) == pytest.approx(1.02)
    assert max(interval.t1 - interval.t0 for interval in found) <= 2 * STRETCH_S + 0.02
    assert len(found) >= 4
