"""How a process ends that its environment does not let work: one line, and a code that says so to its supervisor."""

import sys
from typing import NoReturn

CONFIGURATION = 78
"""EX_CONFIG of sysexits.h: a setting is wrong. Starting the process again without changing it helps nobody."""


def refuse(text: str) -> NoReturn:
    """Say which setting is wrong, and end."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
    raise SystemExit(CONFIGURATION)
