"""Whether a model fits: in the memory of a host that could run it, and on the disk of the one that imports it."""

import shutil
from pathlib import Path

from workers.models.errors import ModelRefused


def check_memory(size: int, memory: int) -> None:
    """Refuse weights of `size` bytes that no host can hold; `memory` is the largest host's, 0 where that is not known.

    Raises ModelRefused.
    """
    if 0 < memory < size:
        text = f"its weights take {size / 1e9:.2f} GB; the largest host has {memory / 1e9:.2f} GB of memory"
        raise ModelRefused("too_large", text)


def check_disk(folder: Path, size: int) -> None:
    """Refuse weights that are fetched into a folder and then stored; what lies there counts. Raises ModelRefused."""
    here = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(folder).free
    if free < 2 * size - here:
        text = f"its weights take {size / 1e9:.2f} GB, twice while they are imported; {free / 1e9:.2f} GB are free"
        raise ModelRefused("state_full", text)
