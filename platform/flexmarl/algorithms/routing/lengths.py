"""How long a reply will be, learned from those that ended. Pure and bounded: one number per kind of turn."""

import math
from collections import OrderedDict

WEIGHT = 1 / 32
"""Of the last reply in its kind's average."""
KINDS = 256
TASKS = 2048
"""Tasks whose replies are remembered, the last ones: a group plays at one time."""


class ReplyLengths:
    """Average reply lengths of kinds of turns (a role, say), and over all of them."""

    def __init__(self) -> None:
        self._average: dict[str, float] = {}
        self._of_task: OrderedDict[str, float] = OrderedDict()
        self.usual = 0.0
        """Average over all turns; 0 before the first reply."""

    def note(self, kind: str, tokens: int, task: str = "") -> None:
        """Take the length of a finished reply in. `task`: what it shares with replies that are the more alike."""
        self.usual = _moved(self.usual, tokens)
        if kind in self._average or len(self._average) < KINDS:
            self._average[kind] = _moved(self._average.get(kind, 0.0), tokens)
        if task:
            self._of_task[task] = _moved(self._of_task.get(task, 0.0), tokens)
            self._of_task.move_to_end(task)
            if len(self._of_task) > TASKS:
                self._of_task.popitem(last=False)

    def left(self, kind: str, done: int, limit: int, task: str = "") -> float:
        """Return the expected tokens behind the first `done` of a reply that ends at `limit` at the latest.

        Replies to the same task count before those of the same kind. A reply longer than what it is compared with is of
        the long tail: it is expected to be as long again.
        """
        average = self._of_task.get(task) or self._average.get(kind, self.usual) or limit
        expected = average - done if done < average else done
        return min(limit - done, max(1.0, expected)) if math.isfinite(expected) else limit - done


def _moved(average: float, tokens: int) -> float:
    return average + WEIGHT * (tokens - average) if average else float(tokens)
