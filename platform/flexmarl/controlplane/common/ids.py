"""Identities towards people: time-ordered UUIDs and short readable keys."""

import re
import secrets
import time
import uuid

_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
"""Digits and letters that are not mistaken for one another when read aloud or copied."""
_KEY_SUFFIX = 4
_KEY_STEM = 40


def uuid7() -> uuid.UUID:
    """Make a UUID of version 7: milliseconds since the epoch first, so that ids sort by creation."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76
    value |= secrets.randbits(12) << 64
    value |= 0b10 << 62
    value |= secrets.randbits(62)
    return uuid.UUID(int=value)


def readable_key(name: str) -> str:
    """Make a key such as `reference-game-7f3k` out of a name. Callers retry when it is taken."""
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_KEY_STEM].strip("-") or "run"
    return f"{stem}-{''.join(secrets.choice(_LETTERS) for _ in range(_KEY_SUFFIX))}"
