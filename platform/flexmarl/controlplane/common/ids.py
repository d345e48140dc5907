"""Identities towards people: time-ordered UUIDs and short readable keys."""

import re
import secrets
import threading
import time
import uuid

_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
"""Digits and letters that are not mistaken for one another when read aloud or copied."""
_KEY_SUFFIX = 4
_KEY_STEM = 40


class Stamps:
    """Millisecond and counter of each new id: always behind the last one (RFC 9562, section 6.2, method 1)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = (0, 0)

    def next(self, now: int) -> tuple[int, int]:
        """Return the stamp of an id made at `now`, also when the clock stands still or goes back."""
        with self._lock:
            milliseconds, counter = self._last
            if now > milliseconds:
                self._last = now, secrets.randbits(11)
            elif counter + 1 < 1 << 12:
                self._last = milliseconds, counter + 1
            else:
                self._last = milliseconds + 1, 0
            return self._last


_stamps = Stamps()


def uuid7() -> uuid.UUID:
    """Make a UUID of version 7: milliseconds since the epoch, then a counter, so that ids of a process sort as made."""
    milliseconds, counter = _stamps.next(time.time_ns() // 1_000_000)
    value = (milliseconds & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76
    value |= counter << 64
    value |= 0b10 << 62
    value |= secrets.randbits(62)
    return uuid.UUID(int=value)


def readable_key(name: str) -> str:
    """Make a key such as `reference-game-7f3k` out of a name. Callers retry when it is taken."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_KEY_STEM].strip("-") or "run"
    return f"{stem}-{''.join(secrets.choice(_LETTERS) for _ in range(_KEY_SUFFIX))}"
