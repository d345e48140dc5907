"""What PostgreSQL cannot hold of a text: a zero byte, in text and in JSON alike. U+FFFD takes its place.

Foreign code writes the reasons, tasks and facts that are kept, and models what it quotes of them; none of it may keep
the rest of a group from being written.
"""

import re

REPLACEMENT = "\ufffd"
_ZERO = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""Escaped: behind an even number of backslashes, which are themselves."""


def text(said: str) -> str:
    """Return a text without zero bytes."""
    return said.replace("\x00", REPLACEMENT)


def json(written: str) -> str:
    """Return JSON whose strings have no zero bytes."""
    return _ZERO.sub(rf"\1{REPLACEMENT}", written) if "\\u0000" in written else written
