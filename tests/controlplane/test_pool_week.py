"""Busy shares of pools by hour: what is known, and what is not."""

from datetime import UTC, datetime

import pytest
from django.core.cache import cache

from flexmarl.controlplane.telemetry.hardware import pools
from flexmarl.store.reads import pool_load

NOW = datetime(2026, 6, 10, 12, 30, tzinfo=UTC)  # a Wednesday


@pytest.fixture
def busy(monkeypatch) -> dict[tuple[str, int], float]:
    cache.clear()
    found: dict[tuple[str, int], float] = {}
    monkeypatch.setattr(pools, "store_connection", lambda: None)
    monkeypatch.setattr(pool_load, "busy_hours", lambda conn, since: found)
    return found


def test_shares_are_of_all_devices_and_of_the_time_that_passed(busy) -> None:
    busy["cpu", int(datetime(2026, 6, 9, 10, tzinfo=UTC).timestamp())] = 3600.0
    busy["cpu", int(datetime(2026, 6, 10, 12, tzinfo=UTC).timestamp())] = 900.0
    week = pools.busy_week(NOW, {"cpu": 2, "gpu": 4})
    assert set(week) == {"cpu"}, "a pool that was never busy has no week"
    assert week["cpu"][1][10] == 0.5, "one of two devices for an hour"
    assert week["cpu"][2][12] == 0.25, "half an hour has passed"
    assert week["cpu"][1][11] == 0.0


def test_hours_before_the_first_work_and_hours_to_come_are_not_known(busy) -> None:
    busy["cpu", int(datetime(2026, 6, 9, 10, tzinfo=UTC).timestamp())] = 60.0
    week = pools.busy_week(NOW, {"cpu": 1})["cpu"]
    assert week[0] == [None] * 24
    assert week[1][9] is None
    assert week[2][13] is None
    assert week[6] == [None] * 24
