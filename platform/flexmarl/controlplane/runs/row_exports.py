"""The rows that a run was trained on, as files in a folder or as one tar file of them: what imports take.

A tar file is for who has no shell where the service runs. It is bounded by what an import takes, and refused before
anything is sent; the command writes a run of any size.
"""

import asyncio
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from django.conf import settings
from psycopg import Connection

from flexmarl.controlplane.common.problems import InvalidState, PayloadTooLarge
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs import row_files
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.data import tokenizers
from flexmarl.store.errors import StoreError
from flexmarl.store.reads.trained_rows import TrainedRow, trained_rows

PIECE = 2**18
TOKEN_BYTES = 13
"""Of a token in the files: id, mask, log-probability and advantage. What is said of each row comes on top."""


@dataclass(frozen=True, slots=True)
class RowArchive:
    """A packed export, from its beginning."""

    file: BinaryIO
    size: int
    """Bytes."""

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes, and close the file behind them."""
        with self.file:
            while piece := await asyncio.to_thread(self.file.read, PIECE):
                yield piece


def write(conn: Connection, run: Run, folder: Path) -> int:
    """Write the rows to a folder that is new or empty; returns how many. Raises StoreError, FileExistsError."""
    return _write(conn, run, folder, trained_rows(conn, int(run.no)))


def packed(run: Run) -> RowArchive:
    """Pack the rows of a run; of one that goes on, the steps so far.

    Raises InvalidState where there are none, or their tokens are not kept; PayloadTooLarge.
    """
    with tempfile.TemporaryDirectory(prefix="flexmarl-rows-") as name:
        folder = Path(name) / "rows"
        try:
            conn = store_connection()
            rows = _write(conn, run, folder, _bounded(run, trained_rows(conn, int(run.no))))
        except StoreError as error:
            raise _impossible(run, f"The rows of {run.key} are not all kept: {error}.") from error
        if not rows:
            raise _impossible(run, f"{run.key} has not been trained on any row yet: its first step makes some.")
        held = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - closed behind its last piece
        with tarfile.open(fileobj=held, mode="w") as archive:
            for file in sorted(folder.iterdir()):
                archive.add(file, file.name)
    size = held.tell()
    if size > settings.MOST_DATASET_BYTES:
        held.close()
        raise _too_large(run)
    held.seek(0)
    return RowArchive(held, size)


def _impossible(run: Run, text: str) -> InvalidState:
    return InvalidState(text, state=str(run.state.status), allowed_actions=[])


def _too_large(run: Run) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{run.key} has more than the {settings.MOST_DATASET_ROWS} rows or {settings.MOST_DATASET_BYTES} bytes "
        f"of one archive: run manage.py export_rows {run.key} FOLDER where the service is."
    )


def _write(conn: Connection, run: Run, folder: Path, rows: Iterable[TrainedRow]) -> int:
    digests = {name: tokenizers.digest(conn, int(run.no), name) for name in run.spec["policies"]}
    about = {"run": run.key, "environment": run.spec["environment"], "tokenizers": digests}
    return row_files.write(folder, rows, about)


def _bounded(run: Run, rows: Iterable[TrainedRow]) -> Iterator[TrainedRow]:
    size = 0
    for number, one in enumerate(rows, 1):
        size += TOKEN_BYTES * (one.row.arrays.n_prompt + one.row.arrays.n_response)
        if number > settings.MOST_DATASET_ROWS or size > settings.MOST_DATASET_BYTES:
            raise _too_large(run)  # at once: the rest would only fill the disk
        yield one
