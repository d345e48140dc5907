"""A group of processes that may have so much memory and no more: what exceeds it, the kernel kills."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

GROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def little_memory(limit: int) -> Iterator[Path]:
    """Make a group below this process's own, in either version of control groups; skip the test where none may be."""
    group = _own() / f"flexmarl-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        names = [name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists()]
        if not names:
            pytest.skip("control groups of this machine do not limit memory")
        (group / names[0]).write_text(str(limit))
        yield group
    finally:
        group.rmdir()


def _own() -> Path:
    own = Path("/proc/self/cgroup")
    lines = own.read_text().splitlines() if own.exists() else []
    found = {kinds: path.lstrip("/") for _, kinds, path in (line.split(":", 2) for line in lines)}
    below = GROUPS / "memory" / found["memory"] if "memory" in found else GROUPS / found.get("", "")
    return below if below.is_dir() else GROUPS
