"""The garbage collector of processes that play simulations or drive runs: they make millions of objects, few in cycles.

Invariant: what is loaded before is neither looked through again nor lost; behind the block all is as it was. Python
thaws all objects or none, so that none are where some were frozen before.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 20_000
"""New objects after which the collector looks at them; by default it does at 700, and finds nothing."""


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Let the collector look at new objects alone, and more seldom."""
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.freeze()
    gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()
