"""The garbage collector of processes that play simulations or drive runs: they make millions of objects, few in cycles.

Invariant: what is loaded before is neither looked through again nor lost; behind the block all is as it was.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 20_000
"""New objects after which the collector looks at them; by default it does at 700, and finds nothing."""


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Let the collector look at new objects alone, and more seldom."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
