"""The rows that both sides of the store's benchmark carry: 1 k token ids and as many log-probabilities, 8 000 bytes.

Needs numpy alone, since the other side lives in a virtual environment of its own. Every row is unlike all others, and
whoever reads one adds the CRC-32 of each of its arrays to a sum: a lost, doubled or changed byte makes it another one.
"""

import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

TOKENS = 1000
AGENTS = ("planner", "solver", "critic", "judge")
WRITERS = 4
READERS = 2
BATCH = 256

Rows = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]


def rows_of(writer: int, agent: int, rows: int) -> Rows:
    """Make the rows that a writer puts for an agent."""
    generator = np.random.default_rng((writer, agent))
    ids = np.minimum(generator.zipf(1.3, size=(rows, TOKENS)), 32_000).astype(np.int32)
    ids[:, 0], ids[:, 1] = writer * len(AGENTS) + agent, np.arange(rows)
    return ids, generator.exponential(1.0, size=(rows, TOKENS)).astype(np.float32)


def checksum(arrays: Iterable[npt.NDArray[np.generic]]) -> int:
    """Add up the CRC-32 of every row of stacked arrays."""
    return sum(zlib.crc32(row) for stacked in arrays for row in np.ascontiguousarray(stacked))


def agents_of(reader: int) -> tuple[str, ...]:
    """Name the agents whose rows a reader consumes."""
    return AGENTS[reader::READERS]
