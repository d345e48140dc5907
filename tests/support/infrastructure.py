"""What tests stand on and do not test. It alone may be tried again: by the name of what went wrong, never by a test's.

A test that failed has said something, so no test is ever run twice. A port that another program took between its choice
and its use, a database that was never set up, a browser that died while it started: none of them is a promise of this
product, and each has an error of its own here. How often one was tried again stands in the summary of the session,
beside whatever else a reader of the result must know of it.
"""

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TRIES = 3
PAUSE_S = 1.0

RETRIED = "infrastructure started again"
GROWN = "bounds that grew with a slow machine"
Remarks = list[tuple[str, str]]
REMARKS: Remarks = []
"""(heading, text) of this session, for its summary."""


class InfrastructureError(Exception):
    """Something that a test stands on did not come up."""


class PortTakenError(InfrastructureError):
    """Another program took a port after it had been found free."""


class DatabaseNotSetUpError(InfrastructureError):
    """`initdb` of the session's own PostgreSQL did not end well."""


class BrowserDiedError(InfrastructureError):
    """Chromium ended before it took its first command."""


def brought_up(start: Callable[[], T], *passing: type[InfrastructureError], pause_s: float = PAUSE_S) -> T:
    """Start something, and again where it fails with an error named here; whatever else it raises is the answer."""
    for _ in range(TRIES - 1):
        try:
            return start()
        except passing as error:
            remark(RETRIED, f"{type(error).__name__}: {error}")
            time.sleep(pause_s)
    return start()


def remark(heading: str, text: str) -> None:
    """Say in the session's summary what bears on its result, with the test that runs now."""
    running = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    REMARKS.append((heading, f"{running}: {text}" if running else text))


def summary(remarks: Remarks) -> list[str]:
    """Return the lines of the summary: each heading with its count, and what is below it."""
    lines = []
    for heading in sorted({heading for heading, _ in remarks}):
        own = [text for found, text in remarks if found == heading]
        lines += [f"{heading}: {len(own)}", *(f"  {text}" for text in own)]
    return lines
