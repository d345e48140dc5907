"""While files of a home are copied for a backup, nothing that rows may name is removed from it.

A database is dumped first and its home archived afterwards, which takes minutes in which runs go on. What is replaced
meanwhile would be named by the dump and be missing in the archive. Invariant: a hold that was forgotten ends by itself.
"""

import time
from pathlib import Path

HOLD = "backup-hold"
"""File in a home that is there while a backup is made."""
HOLD_S = 86_400.0
"""A hold counts for so long after the file was last touched."""


def removals_held(home: str | Path) -> bool:
    """Tell whether a backup of this home is being made, so that its files stay."""
    try:
        touched = (Path(home) / HOLD).stat().st_mtime
    except OSError:
        return False
    return time.time() - touched < HOLD_S
