"""Counter-based seeds: a draw depends on its key alone, never on the order in which work happened.

A seed is 63 bits, so that it is a non-negative signed 64-bit integer everywhere it travels.
"""

import hashlib
import struct

BITS = 63
"""Of a seed."""


def derive(*parts: int | str) -> int:
    """Return the 63-bit seed of a key. Equal keys give equal seeds on every machine; parts do not run together."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, str):
            raw = part.encode()
            digest.update(b"s" + struct.pack("<I", len(raw)) + raw)
        else:
            digest.update(b"i" + struct.pack("<q", part))
    return int.from_bytes(digest.digest(), "little") >> (64 - BITS)


def turn_seed(run_seed: int, draw: int, member: int, role: str, turn: int) -> int:
    """Return the sampling seed of one model call. The attempt is no part: a repeated attempt says the same again."""
    return derive(run_seed, "turn", draw, member, role, turn)


def episode_seed(run_seed: int, draw: int, member: int, breakdowns: int = 0) -> int:
    """Return the seed of what happens by chance inside an episode's environment.

    `breakdowns` counts earlier tries that the environment itself broke off: those may not simply be repeated. A try
    that a machine lost is no part of the key, so it is repeated as it was.
    """
    return derive(run_seed, "episode", draw, member, breakdowns)
