"""Inputs of an import: an uploaded file is one, an archive of a hub's files has one for each of them, in its order.

Invariant: of an archive nothing is unpacked but one member at a time, to a file without a name; what its manifest does
not list is not read.
"""

import shutil
import tarfile
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import IO, BinaryIO, cast

from flexmarl.contracts.hub_datasets import ARCHIVE, MANIFEST, DatasetOrigin
from flexmarl.controlplane.datasets.bad_rows import BadRow, UnreadableFile

BROKEN = BadRow(0, "", "broken_archive", "The archive of fetched files is broken.", "Fetch the dataset once more.")


@dataclass(frozen=True, slots=True)
class Input:
    """A file whose rows are read."""

    file: BinaryIO
    kind: str
    name: str = ""
    """Of the file, where there are several."""
    split: str = ""
    """That the hub has it in; empty for what was uploaded."""


def inputs_of(file: BinaryIO, kind: str) -> Generator[Input, None, None]:
    """Return what rows are read of, one after the other: each is closed when the next one is taken.

    Raises UnreadableFile.
    """
    if kind != ARCHIVE:
        yield Input(file, kind)
        return
    try:
        with tarfile.open(fileobj=file, mode="r:") as packed:
            yield from _members(packed)
    except tarfile.TarError as error:
        raise UnreadableFile(BROKEN) from error


def _members(packed: tarfile.TarFile) -> Iterator[Input]:
    head = packed.next()
    said = packed.extractfile(head) if head is not None and head.name == MANIFEST else None
    if said is None:
        raise UnreadableFile(BROKEN)
    for about in DatasetOrigin.model_validate_json(said.read()).files:
        member = packed.next()
        body = packed.extractfile(member) if member is not None and member.name == about.path else None
        if body is None:
            raise UnreadableFile(BROKEN)
        with tempfile.TemporaryFile() as unpacked:
            shutil.copyfileobj(body, cast("IO[bytes]", unpacked))
            unpacked.seek(0)
            yield Input(cast("BinaryIO", unpacked), about.format, about.path, about.split)
