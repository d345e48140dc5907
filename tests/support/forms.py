"""Slow proofs have two forms: CI runs the short one, `./scripts/test --full` the full one.

Tests of the marker `full` run in the full form only. CONTRIBUTING.md lists both, with what the short form leaves out.
"""

import os
from typing import TypeVar

T = TypeVar("T")

FULL = os.environ.get("FLEXMARL_FULL_TESTS") == "1"
"""Set by `./scripts/test --full`."""


def form(*, short: T, full: T) -> T:
    """Return what the form that runs takes: a number of repetitions, a length, a choice of cases."""
    return full if FULL else short
