"""How much a run may have uploaded to a node.

Invariants: everything counts that lies here under the run's name: contents that it claims or that are on their way,
each whole with its manifest, and the folders of its checkpoints. So no sender fills a disk with one run, whatever it
names what it sends. Contents that runs share count for each of them.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from flexmarl.host.disk import in_words, space
from workers.transfer.base import StateError
from workers.transfer.local import LocalTier

SHARE = 0.25
"""Of the disk's size, where no quota is set."""
ENTRY_BYTES = 4096
"""Counted for each content besides, so that empty ones are not free."""
GIB = 2**30


class QuotaReached(StateError):
    """A run has uploaded as much as it may."""

    code = "upload_quota"


class UploadQuota:
    """Bounds what each run may have in a folder."""

    def __init__(self, home: str | Path, tier: LocalTier, gib: int = 0) -> None:
        """A quota of 0 GiB is a quarter of the disk's size."""
        self._home = Path(home)
        self._tier = tier
        self._gib = gib

    def check(self, run_id: int, digest: str, more: int, unclaimed: Mapping[str, int]) -> None:
        """Raise QuotaReached where a run would have more than its quota with so many bytes more.

        `unclaimed` maps what came for the run, or is on its way, and has no claim of its name to what it counts.
        """
        most = self._gib * GIB if self._gib else int(SHARE * space(self._home).total)
        used = self._used(run_id, unclaimed)
        if used + more > most:
            raise QuotaReached(
                digest,
                f"run {run_id} has uploaded {in_words(used)} to this node and may have {in_words(most)}: "
                f"no room for {in_words(more)} more",
            )

    def claimed(self, run_id: int) -> set[str]:
        """Return the digests that a run claims here."""
        owner = f".claim.run-{run_id}-"
        return {name.partition(".")[0] for name in os.listdir(self._home / "state") if owner in name}

    def _used(self, run_id: int, unclaimed: Mapping[str, int]) -> int:
        contents = {**{digest: self._size(digest) for digest in self.claimed(run_id)}, **unclaimed}
        folders = self._home / "checkpoints" / f"run-{run_id}"
        return sum(contents.values()) + sum(map(_file_bytes, folders.rglob("*")))

    def _size(self, digest: str) -> int:
        with contextlib.suppress(StateError, OSError):  # it went, or came as one file from an earlier release
            return content_bytes(self._tier.description(digest).bytes, len(self._tier.manifest(digest)))
        return 0


def content_bytes(payload: int, manifest: int) -> int:
    """Return what a content counts."""
    return payload + manifest + ENTRY_BYTES


def _file_bytes(path: Path) -> int:
    with contextlib.suppress(OSError):  # a checkpoint is being removed
        return path.stat().st_size
    return 0
