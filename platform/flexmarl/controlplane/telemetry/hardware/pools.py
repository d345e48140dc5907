"""How busy devices are now and pools were this week. Read often by open pages, so the week is kept for a minute."""

from datetime import datetime, timedelta

import structlog
from django.core.cache import cache

from flexmarl.controlplane.common.store import store_connection
from flexmarl.store.reads import pool_load

log = structlog.get_logger(__name__)
NOW_S = 300.0
"""Window of `busy now`, in seconds."""
_KEEP_S = 60


def busy_devices(window_s: float = NOW_S) -> dict[str, float]:
    """Return the busy share of each leased device over the last minutes."""
    return pool_load.busy_devices(store_connection(), window_s)


def busy_week(now: datetime, devices: dict[str, int]) -> dict[str, list[list[float | None]]]:
    """Return pool -> seven days of 24 busy shares, Monday first, in the time zone of `now`.

    Hours to come and hours before the pool was first busy this week are None; pools that never were are left out.
    `devices` is how many each pool has.
    """
    monday = (now - timedelta(days=now.weekday())).replace(hour=0, minute=0, second=0, microsecond=0)
    since = monday.timestamp()
    name = f"busy-week:{int(since)}"
    found = _kept(name)
    if found is None:
        found = pool_load.busy_hours(store_connection(), since)
        _keep(name, found)
    weeks: dict[str, list[list[float | None]]] = {}
    for pool in sorted({pool for pool, _ in found if devices.get(pool)}):
        busy = {hour: seconds for (name, hour), seconds in found.items() if name == pool}
        weeks[pool] = [
            [_share(busy, monday + timedelta(days=day, hours=hour), now, devices[pool]) for hour in range(24)]
            for day in range(7)
        ]
    return weeks


def _share(busy: dict[int, float], start: datetime, now: datetime, devices: int) -> float | None:
    """Return the busy share of an hour; nothing is known of those to come and of those before the first work."""
    hour = int(start.timestamp()) // 3600 * 3600
    if start >= now or hour < min(busy):
        return None
    lasted = min(3600.0, (now - start).total_seconds())
    return min(1.0, busy.get(hour, 0.0) / (devices * lasted))


def _kept(name: str) -> dict[tuple[str, int], float] | None:
    try:
        found: dict[tuple[str, int], float] | None = cache.get(name)
    except Exception as error:  # whatever the cache's client raises: without it the week is read again
        log.warning("cache_not_read", error=str(error))
        return None
    return found


def _keep(name: str, found: dict[tuple[str, int], float]) -> None:
    try:
        cache.set(name, found, _KEEP_S)
    except Exception as error:  # whatever it raises: the week is read again next time
        log.warning("cache_not_written", error=str(error))
