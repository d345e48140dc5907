"""Which Chromium tests and benchmarks drive."""

import os
import shutil

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
"""In this order: what cannot draw on a screen takes half of the time."""


def installed_chromium() -> str:
    """Return the path of a Chromium; empty where there is none."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), "")
