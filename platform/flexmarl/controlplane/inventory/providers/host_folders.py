"""Where the hosts of providers keep their files, on the folder that the installation and its hosts share."""

from pathlib import Path

from django.conf import settings


def home_of(node: str) -> Path:
    """Return a host's own folder."""
    return Path(settings.HOME) / "nodes" / node


def log_of(node: str, native: str) -> Path:
    """Return where what a job itself writes goes; `native` is the provider's name of the job, or a sign for it."""
    return home_of(node) / "logs" / f"batch-{native}.log"


def last_words(node: str, native: str) -> str:
    """Return the last line that a job wrote; empty when it wrote none, or this machine does not see it."""
    try:
        lines = log_of(node, native).read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:500] if lines else ""
