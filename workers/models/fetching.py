"""Folders of models that an import fetches from elsewhere, file by file; what an earlier attempt fetched is kept.

Invariants: one process fetches into a folder at a time, and nobody removes it meanwhile; a folder whose model was
imported goes, since its content lies in the state plane by then. One that was not finished stays as long as others that
this host makes and nobody uses, so that the next attempt goes on.
"""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.models.errors import ModelRefused
from workers.models.making import held
from workers.models.opening import making

SPARE = 1.05
"""Fetching needs so much of a model's size on the disk, and storing it as much again."""


@contextmanager
def fetching(what: str) -> Iterator[Path]:
    """Hold the folder of what is fetched, named by `what`; it is gone afterwards unless an exception says otherwise.

    Raises UnsupportedModel where this process has no home.
    """
    models, _ = making()
    place = models / f"fetched-{hashlib.sha256(what.encode()).hexdigest()}"
    with held(place):
        yield place
        shutil.rmtree(place, ignore_errors=True)


def check_room(place: Path, size: int, memory: int) -> None:
    """Raise ModelRefused for files that no host could hold in memory, or this one on its disk.

    `size` is that of the files in bytes, `memory` what the largest host has, 0 where that is not known.
    """
    if 0 < memory < size:
        text = f"its files take {size / 1e9:.2f} GB; the largest host has {memory / 1e9:.2f} GB of memory"
        raise ModelRefused("too_large", text)
    have = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    needed, free = int(size * 2 * SPARE) - have, shutil.disk_usage(place).free
    if needed > free:
        text = f"fetching and storing it takes {needed / 1e9:.2f} GB; this host's disk has {free / 1e9:.2f} GB free"
        raise ModelRefused("state_full", text)
