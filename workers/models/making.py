"""Folders of models that this host makes: each once, whoever wants it, whole or not at all."""

import fcntl
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from flexmarl.host.files import sync_folder, sync_tree


def make_once(place: Path, write: Callable[[Path], None]) -> None:
    """Have a folder written, unless it is there. Who wants it meanwhile, in whatever process, waits. Raises what
    `write` raises, and OSError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel frees it when this process ends, however it does
        if place.is_dir():
            return
        for left in place.parent.glob(f".{place.name}-new-*"):  # of a maker that was killed
            shutil.rmtree(left, ignore_errors=True)
        temporary = place.with_name(f".{place.name}-new-{uuid.uuid4().hex}")
        try:
            write(temporary)
            sync_tree(temporary)
            temporary.rename(place)
            sync_folder(place.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
