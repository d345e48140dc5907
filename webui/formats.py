"""How figures are written: thin spaces in thousands, true minus, SI letters, ranges, durations. Pure functions.

A missing figure is written as an en dash, so that a table never shows `None` or an invented zero.
"""

import math
from datetime import datetime

DASH = "–"
THIN = "\u2009"
MINUS = "−"


def number(value: float | None, digits: int = 0) -> str:
    """Write a number with thin spaces between thousands."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return DASH
    text = f"{value:,.{digits}f}".replace(",", THIN)
    if text.startswith("-"):
        return text[1:] if not text.strip("-0.\u2009") else MINUS + text[1:]
    return text


def tiny(value: float | None) -> str:
    """Write a figure that may be far below 1: `0.012`, `1.4e−5`."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0 or abs(value) >= 0.001:
        return number(value, 3)
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.replace('-', MINUS)}e{str(int(exponent)).replace('-', MINUS)}"


def signed(value: float | None, digits: int = 3) -> str:
    """Write a difference with its sign."""
    if value is None or not math.isfinite(value):
        return DASH
    text = number(value, digits)
    return text if text.startswith(MINUS) or not text.strip("0.") else f"+{text}"


def percent(share: float | None, digits: int = 0) -> str:
    """Write a share of 1 as percent."""
    return DASH if share is None else f"{number(share * 100, digits)} %"


def si(value: float | None) -> str:
    """Write a magnitude with two or three significant digits and an SI letter: `9.0 k`."""
    if value is None or not math.isfinite(value):
        return DASH
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit * 0.9995:
            scaled = value / limit
            return f"{number(scaled, 0 if abs(scaled) >= 99.95 else 1)} {letter}"
    return number(value, 0 if abs(value) >= 99.5 or value == int(value) else 1)


def bytes_text(value: float | None) -> str:
    """Write a size in bytes."""
    if value is None:
        return DASH
    scaled, unit = float(value), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if scaled < 1000 or unit == "TB":
            break
        scaled /= 1000
    return f"{number(scaled, 0 if scaled >= 100 or unit == 'B' else 1)} {unit}"


def duration(seconds: float | None) -> str:
    """Write a length of time in its two largest units: `13 h 24 m`, `9.8 s`."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    seconds = max(0.0, seconds)
    if seconds < 0.0995:
        return f"{number(seconds * 1000)} ms"
    if seconds < 9.95:
        return f"{number(seconds, 1)} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _pair(whole // 60, "m", whole % 60, "s")
    if whole < 86_400:
        return _pair(whole // 3600, "h", whole % 3600 // 60, "m")
    return _pair(whole // 86_400, "d", whole % 86_400 // 3600, "h")


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit}" + (f" {small} {small_unit}" if small else "")


_SPAN_UNITS = ((172_800, 86_400, "d"), (7200, 3600, "h"), (120, 60, "min"), (-math.inf, 1, "s"))
"""From this many seconds on, a range is written in units of this many seconds."""


def span(low: float | None, high: float | None) -> str:
    """Write an estimate as a range in one unit: `18–21 h`."""
    if low is None or high is None:
        return DASH
    size, unit = next((s, u) for limit, s, u in _SPAN_UNITS if high >= limit)
    digits = 1 if unit in ("h", "d") and high / size < 10 else 0
    first, last = number(low / size, digits), number(high / size, digits)
    return f"{last} {unit}" if first == last else f"{first}–{last} {unit}"


def moment(text: str | datetime | None) -> datetime | None:
    """Read an RFC 3339 time; a datetime passes through."""
    if isinstance(text, datetime):
        return text
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def since(at: str | datetime | None, now: datetime) -> str:
    """Write how long something has lasted."""
    then = moment(at)
    return DASH if then is None else duration((now - then).total_seconds())


def ago(at: str | datetime | None, now: datetime) -> str:
    """Write a past moment relative to now, in the time zone of now: `2 min ago`, `yesterday 22:30`."""
    then = moment(at)
    if then is None:
        return DASH
    then = then.astimezone(now.tzinfo)
    seconds = (now - then).total_seconds()
    if seconds < 45:
        return "just now"
    if seconds < 3600:
        return f"{max(1, round(seconds / 60))} min ago"
    days = (now.date() - then.date()).days
    if days == 0 or seconds < 6 * 3600:
        return f"{round(seconds / 3600)} h ago"
    if days == 1:
        return f"yesterday {then:%H:%M}"
    return f"{days} days ago" if days < 30 else f"{then:%Y-%m-%d}"


def device_hours(seconds: float) -> str:
    """Write device time: lease time summed over devices."""
    hours = seconds / 3600
    return f"{number(hours, 0 if hours >= 100 else 1 if hours >= 1 else 2)} device-h"


def plural(count: int, word: str, many: str = "") -> str:
    """Write a count with its noun: `1 step`, `2 steps`."""
    return f"{number(count)} {word if count == 1 else many or word + 's'}"
