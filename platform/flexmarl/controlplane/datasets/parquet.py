"""Rows of a Parquet file as JSON lines: `python -m flexmarl.controlplane.datasets.parquet MOST_ROWS MOST_COLUMNS`.

The file comes in as standard input, which has to be a file on disk. It runs in a process of its own with limits, since
a small file may unpack to any size, and the library that reads it is not ours. The process ends without taking that
library apart: its threads abort it then once in a hundred times, after every row was read.
"""

import resource
import sys
from typing import Any, NoReturn

import orjson

from flexmarl.host.exits import leave

_MEMORY_BYTES = 6 * 2**30
"""Address space; the library's threads take some of it without using it."""
_CPU_S = 120
_AT_ONCE = 64
"""Rows that are unpacked together."""


def main() -> None:
    """Write a line per row. Ends with a line on standard error that says why it cannot."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    most_rows, most_columns = int(sys.argv[1]), int(sys.argv[2])
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(sys.stdin.buffer, memory_map=False)
        facts = file.metadata
        if facts.num_columns > most_columns:
            _refuse(f"it has {facts.num_columns} columns, at most {most_columns} are read")
        if facts.num_rows > most_rows:
            _refuse(f"it has {facts.num_rows} rows, at most {most_rows} are read")
        for batch in file.iter_batches(batch_size=_AT_ONCE, use_threads=False):
            for row in batch.to_pylist():
                sys.stdout.buffer.write(orjson.dumps(row, default=_plain) + b"\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _refuse("nobody reads any more")
    except Exception as error:  # whatever a library raises of a file that somebody sent
        _refuse(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    leave()


def _refuse(why: str) -> NoReturn:
    sys.stderr.write(f"{why}\n")
    leave(1)


def _plain(value: Any) -> str:
    """Return dates, times and decimal numbers as text. Raises TypeError for bytes."""
    if isinstance(value, bytes):
        raise TypeError("bytes")
    return str(value)


if __name__ == "__main__":
    main()
