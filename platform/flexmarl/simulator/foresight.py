"""What a router expects of replies that nobody has made yet.

Without a ranker: what real workers learn from replies that ended, by the same code. A ranker is a declared model of what
the platform has none of: something that reads a prompt and tells long replies from others, with stated recall.
"""

from statistics import fmean

from flexmarl.algorithms.routing import ReplyLengths
from flexmarl.simulator import chance
from flexmarl.simulator.scenario import Ranker, RoleLoad

UNKNOWN = 8192
"""Most tokens of a reply where a workload states no bound."""
_SEEN, _DRAWS = 7, 4096


class Foresight:
    def __init__(self, ranker: Ranker | None) -> None:
        self._ranker = ranker
        self._lengths = ReplyLengths()
        self._known: dict[RoleLoad, Kinds] = {}
        self._usual = 0.0

    def note(self, role: str, task: str, tokens: int) -> None:
        """A reply has ended."""
        self._lengths.note(role, tokens, task)

    def left(self, role: str, task: str, load: RoleLoad, reply: int, made: float, key: int) -> float:
        """Return the tokens that a reply is expected to have left."""
        if self._ranker is None:
            limit = round(load.reply.most) if load.reply.most < float("inf") else UNKNOWN
            return self._lengths.left(role, int(made), limit, task)
        kinds = self._known.get(load)
        if kinds is None:
            kinds = self._known[load] = kinds_of(load, self._ranker)
            self._usual = fmean(own.usual for own in self._known.values())
        return max(1.0, (kinds.long if kinds.flags(reply, key) else kinds.others) - made)

    @property
    def usual(self) -> float:
        """Return what an average turn is expected to take; 0: unknown."""
        return self._usual if self._ranker else self._lengths.usual


class Kinds:
    """Replies of a role as a ranker tells them apart."""

    def __init__(self, bound: float, recall: float, mistaken: float) -> None:
        self.long = self.others = self.usual = 0.0
        self._bound, self._recall, self._mistaken = bound, recall, mistaken

    def flags(self, reply: float, key: int) -> bool:
        """Tell whether a reply is taken for a long one."""
        return chance.uniform(key, _SEEN) < (self._recall if reply > self._bound else self._mistaken)


def kinds_of(load: RoleLoad, ranker: Ranker) -> Kinds:
    """Return what a ranker that was fitted on many replies of a role expects."""
    keys = [chance.mixed(_SEEN, number) for number in range(_DRAWS)]
    drawn = [load.reply.draw(key) for key in keys]
    bound = sorted(drawn)[round((1.0 - ranker.share) * (_DRAWS - 1))]
    longer = sum(reply > bound for reply in drawn) / _DRAWS
    kinds = Kinds(bound, ranker.recall, (1.0 - ranker.recall) * longer / (1.0 - longer))
    long = [reply for reply, key in zip(drawn, keys, strict=True) if kinds.flags(reply, key)]
    others = [reply for reply, key in zip(drawn, keys, strict=True) if not kinds.flags(reply, key)]
    kinds.usual = fmean(drawn)
    kinds.long, kinds.others = fmean(long or drawn), fmean(others or drawn)
    return kinds
