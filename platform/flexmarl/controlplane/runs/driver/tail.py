"""The tail of a run's log behind its last snapshot: what a successor would decide anew, and when to cut it short.

Snapshots come by events, by work and by time, never by decisions: a fact that is decided on alone costs no more than
its row. A tail is as long as it may be for a recovery within a second, and longer only where a state is so large that
writing it more often would take more than its share.
"""

from dataclasses import dataclass

TAIL_EVENTS = 20_000
TAIL_WORK_S = 0.3
"""A tail that took so long to decide is replayed in about that time, whatever the size of the run."""
TAIL_S = 30.0
SNAPSHOT_SHARE = 0.1
"""Of the driver's time that snapshots may take."""


@dataclass(slots=True)
class Tail:
    """Begins behind event `seq`, whose snapshot was made `at`."""

    seq: int
    at: float
    work_s: float = 0.0
    """Time it took to decide."""
    snapshot_s: float = 0.0
    """Time that the last snapshot took."""

    def too_long(self, seq: int, now: float) -> bool:
        """Tell whether a snapshot is due after event `seq`."""
        return (
            seq - self.seq >= TAIL_EVENTS
            or self.work_s >= max(TAIL_WORK_S, self.snapshot_s / SNAPSHOT_SHARE)
            or now - self.at >= TAIL_S
        )

    def cut(self, seq: int, now: float) -> None:
        """Begin anew: the state after `seq` is to be stored."""
        self.seq, self.at, self.work_s = seq, now, 0.0
