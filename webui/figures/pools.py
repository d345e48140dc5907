"""Drawings of pools: the strip of devices in their owners' hues, and busy shares by hour."""

from collections.abc import Mapping, Sequence
from typing import Any

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LEVELS = 6
_MOST_MARKS = 4


def device_marks(lease: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the agents that colour a device's edge; none for a free one or one of another project."""
    return [] if lease is None else list(lease["agents"])[:_MOST_MARKS]


def heat_rows(week: Sequence[Sequence[float | None]] | None) -> list[dict[str, Any]]:
    """Return the days of a week up to today as cells of seven levels; nothing when there is no data."""
    if week is None:
        return []
    days = [
        {
            "day": DAYS[number],
            "cells": [{"hour": hour, "level": level(share), "share": share} for hour, share in enumerate(shares)],
        }
        for number, shares in enumerate(week)
        if any(share is not None for share in shares)
    ]
    return days


def level(share: float | None) -> int | None:
    """Return 0 to 6 for a share, None for an hour to come."""
    return None if share is None else min(LEVELS, max(0, round(share * LEVELS)))
