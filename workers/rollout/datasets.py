"""Rows of datasets in a rollout worker: read once per digest, checked by it, and kept while runs may need them."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from flexmarl.language.dataset_rows import digest_of

KEPT = 4
"""Datasets that a process keeps."""


class DatasetMissing(Exception):
    """The store does not hold the rows that a run was made for."""


@dataclass(frozen=True, slots=True)
class DatasetLines:
    """The rows of a dataset by their sides, as lines; a row is read when it is played."""

    training: tuple[bytes, ...]
    held_out: tuple[bytes, ...]


_kept: OrderedDict[str, DatasetLines] = OrderedDict()


def kept(digest: str) -> DatasetLines | None:
    """Return rows that this process has."""
    return _kept.get(digest)


def checked(digest: str, rows: Iterable[tuple[bool, bytes]]) -> DatasetLines:
    """Return rows that were read by their sides. Raises DatasetMissing unless they are those of the digest."""
    read = list(rows)
    found = digest_of(read)
    if found != digest:
        raise DatasetMissing(f"the store holds {len(read)} rows of dataset {digest[:12]}, of digest {found[:12]}")
    sides = (tuple(line for held_out, line in read if held_out is side) for side in (False, True))
    return DatasetLines(*sides)


def keep(digest: str, rows: Iterable[tuple[bool, bytes]]) -> DatasetLines:
    """Keep rows that were read. Raises DatasetMissing unless they are those of the digest."""
    _kept[digest] = checked(digest, rows)
    while len(_kept) > KEPT:
        _kept.popitem(last=False)
    return _kept[digest]
