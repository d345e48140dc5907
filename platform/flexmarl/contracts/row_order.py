"""Which training row of a dataset is the task of a draw: a pure function of the draw's number.

Invariant: each epoch goes once through all rows, in an order of its own.
"""

import hashlib

_ROUNDS = 4
"""Of the Feistel network; four make its order pseudo-random."""


def epoch_of(draw: int, rows: int) -> int:
    """Return which pass through the rows a draw belongs to, from 0."""
    return draw // rows


def row_of(draw: int, rows: int, seed: int) -> int:
    """Return the row of a draw, from 0.

    The order of an epoch is a Feistel network over the next power of four, walked until it lands on a row: a
    permutation that needs no memory.
    """
    key = f"{seed}/{epoch_of(draw, rows)}/".encode()
    half = (max(rows - 1, 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    place = draw % rows
    while True:
        left, right = place >> half, place & mask
        for number in range(_ROUNDS):
            mixed = hashlib.blake2b(key + f"{number}/{right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(mixed, "big") & mask)
        place = left << half | right
        if place < rows:
            return place
