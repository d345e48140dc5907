"""What a node's agent measured of its clock, and when that is too far from the database's."""

from collections.abc import Mapping
from typing import Any

OFF_S = 1.0
"""From here on, beyond what the measurement leaves open, times that a node reports mislead people."""
NEXT_STEP = "Synchronise the clocks of this host and of the database server (NTP), such as with chrony."


def clock_row(load: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the state of a node's clock by its latest report; None where its agent reports none."""
    offset, took = load.get("clock_offset_s"), load.get("clock_round_trip_s")
    if not isinstance(offset, int | float) or not isinstance(took, int | float):
        return None
    off = abs(offset) - took / 2 > OFF_S
    way = "behind" if offset > 0 else "ahead of"
    return {
        "offset_s": offset,
        "round_trip_s": took,
        "state": "off" if off else "ok",
        "reason": f"Its clock is {abs(offset):.1f} s {way} the database's: times that it reports are off by that."
        if off
        else "",
        "next_step": NEXT_STEP if off else "",
    }
