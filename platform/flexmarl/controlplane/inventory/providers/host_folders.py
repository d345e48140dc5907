"""Where the hosts of providers keep their files: on the folder that the installation and its hosts share.

One that has a node token keeps its files on its own disk; where what its job writes goes is not seen from here.
"""

from pathlib import Path

from django.conf import settings


def home_of(node: str) -> Path:
    """Return a host's own folder."""
    return Path(settings.HOME) / "nodes" / node


def log_of(node: str, native: str) -> Path:
    """Return where what a job itself writes goes; `native` is the provider's name of the job, or a sign for it."""
    return home_of(node) / "logs" / f"batch-{native}.log"


def log_on_host(sign: str) -> str:
    """Return where a job writes on a host that shares no folder; `sign` stands for the provider's name of the job."""
    return f"/tmp/flexmarl-{sign}.log"


def last_words(node: str, native: str) -> str:
    """Return the last line that a job wrote; empty when it wrote none, or this machine does not see it."""
    try:
        lines = log_of(node, native).read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:500] if lines else ""
