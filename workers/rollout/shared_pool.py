"""What others published and this run has not used: bounded, by task and by who said it.

Invariants. A content comes in once, however often it is handed out. A member has at most its share of the places, so
whoever floods displaces only what it said itself. What is taken is gone.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from flexmarl.contracts.shared_rollouts import PublishedRollout, problem_of

PER_MEMBER = 1024
"""Rollouts of one member."""
MEMBERS = 64
PER_TASK = 16
"""Rollouts of one member for one task."""
REMEMBERED = 65_536
"""Contents that are known when they come again."""


@dataclass(slots=True)
class _Member:
    order: deque[tuple[str, str]] = field(default_factory=deque)
    """(task, digest), the oldest first; some of them are taken already."""
    by_task: dict[str, "OrderedDict[str, PublishedRollout]"] = field(default_factory=dict)
    """Task -> digest -> rollout, the oldest first."""

    def remove(self, task: str, digest: str) -> None:
        own = self.by_task.get(task)
        if own is not None:
            own.pop(digest, None)
            if not own:
                del self.by_task[task]


class SharedPool:
    """Rollouts of others that wait for a group that plays their task."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._known: OrderedDict[str, None] = OrderedDict()

    def add(self, published: PublishedRollout) -> str:
        """Take a rollout in; returns why it was not, in one word, or nothing."""
        if problem := problem_of(published.rollout):
            return problem
        digest, task = published.rollout.digest, published.rollout.task
        if digest in self._known:
            return "repeated"
        if published.member not in self._members and len(self._members) >= MEMBERS:
            return "too_many_members"
        member = self._members.setdefault(published.member, _Member())
        self._remember(digest)
        own = member.by_task.setdefault(task, OrderedDict())
        own[digest] = published
        if len(own) > PER_TASK:
            own.popitem(last=False)  # the newest were said by the policy that has learned most
        member.order.append((task, digest))
        while len(member.order) > PER_MEMBER:
            member.remove(*member.order.popleft())
        return ""

    def of_task(self, task: str, most: int) -> list[PublishedRollout]:
        """Return what is there for a task, the newest of each member in turn: no one fills the list alone."""
        queues = [reversed(own.by_task[task].values()) for own in self._members.values() if task in own.by_task]
        return [found for found, _ in zip(_in_turn(queues), range(most), strict=False)]

    def take(self, published: PublishedRollout) -> None:
        """Let go of a rollout: it was used, or is of no use."""
        self._members[published.member].remove(published.rollout.task, published.rollout.digest)

    def __len__(self) -> int:
        return sum(len(own) for member in self._members.values() for own in member.by_task.values())

    def _remember(self, digest: str) -> None:
        self._known[digest] = None
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def _in_turn(queues: "list[Iterator[PublishedRollout]]") -> Iterator[PublishedRollout]:
    while queues:
        left = []
        for queue in queues:
            if (found := next(queue, None)) is not None:
                left.append(queue)
                yield found
        queues = left
