"""Times as the API writes them."""

from datetime import UTC, datetime
from typing import overload


@overload
def rfc3339(at: datetime) -> str: ...
@overload
def rfc3339(at: None) -> None: ...
@overload
def rfc3339(at: datetime | None) -> str | None: ...
def rfc3339(at: datetime | None) -> str | None:
    """Write a time as UTC RFC 3339 with milliseconds and `Z`; None stays None."""
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_epoch(seconds: float) -> datetime:
    """Return the time of seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)
