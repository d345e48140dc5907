"""What rollout workers ask engines for, as the core knows it: the part of its state that assignments follow.

Invariants: the last report of a worker counts, and only for `STALE_S`, since a worker that died takes nothing back;
one that asks for anything reports again before that. What is read here is never more precise than a report is young:
whoever decides by it must be right when it is a second old.
"""

from dataclasses import dataclass, field
from math import exp

from flexmarl.contracts.events import DemandReported

STALE_S = 15.0
"""A report counts for so long."""
SMOOTH_S = 1.0
"""Time constant of the queues that places follow: one burst moves nothing."""
TREND_S = 4.0
"""Time constant of what queues are held against to tell whether they grow."""
NEWEST = 0.3
"""Weight of the newest load in what loads of a policy are said to take."""


@dataclass(slots=True)
class DemandReport:
    """The last one of a rollout worker."""

    at: float
    turns: dict[str, int] = field(default_factory=dict)
    """Policy -> turns without a reply."""
    sent: dict[str, int] = field(default_factory=dict)
    """Policy -> those of them that an engine was asked."""
    depths: dict[int, int] = field(default_factory=dict)
    """Lease -> turns at the engine."""
    queued: dict[int, int] = field(default_factory=dict)
    """Lease -> those of them that wait there."""
    cache: dict[int, int] = field(default_factory=dict)
    """Lease -> tokens of this worker's turns at the engine."""


@dataclass(slots=True)
class DemandState:
    """What is asked of each policy, and since when it stands as it does. Times are of the core's clock."""

    reports: dict[str, DemandReport] = field(default_factory=dict)
    queues: dict[str, float] = field(default_factory=dict)
    """Policy -> turns without a reply, smoothed over the last seconds."""
    before: dict[str, float] = field(default_factory=dict)
    """The same, smoothed over some more seconds."""
    at: float = 0.0
    """When the queues were smoothed last."""
    waiting: dict[str, float] = field(default_factory=dict)
    """Policy that is asked and has no engine -> since when."""
    idle: dict[str, float] = field(default_factory=dict)
    """Policy that nobody asks -> since when."""
    stuck: dict[str, float] = field(default_factory=dict)
    """Policy whose turns all wait although its engines hold what they are to hold -> since when."""
    apart: dict[str, float] = field(default_factory=dict)
    """Policy whose queue is too long beside the shortest one -> since when."""
    gained: dict[str, float] = field(default_factory=dict)
    """Policy that was given another's place -> when."""
    gave: dict[str, float] = field(default_factory=dict)
    """Policy that gave a place for another's longer queue -> when."""
    hold_s: dict[str, float] = field(default_factory=dict)
    """Policy that was given another's place -> how long it keeps what it has."""
    load_s: dict[str, float] = field(default_factory=dict)
    """Policy -> seconds that a load of it takes, by those there were."""

    def take(self, event: DemandReported, now: float) -> None:
        """Note a worker's report in the place of its last one."""
        turns = {name: count.waiting + count.in_flight for name, count in event.policies.items()}
        self.reports.pop(event.worker, None)
        sent = {name: count.in_flight for name, count in event.policies.items() if count.in_flight}
        self.reports[event.worker] = DemandReport(
            now, {n: count for n, count in turns.items() if count}, sent, dict(event.engines), dict(event.queued),
            dict(event.cache),
        )  # fmt: skip

    def refresh(self, policies: tuple[str, ...], now: float) -> dict[str, int]:
        """Forget reports that are too old, smooth the queues; returns each policy's turns without a reply."""
        self.forget_old(now)
        turns = {name: sum([report.turns.get(name, 0) for report in self.reports.values()]) for name in policies}
        for queues, constant in ((self.queues, SMOOTH_S), (self.before, TREND_S)):
            stays = exp(-max(now - self.at, 0.0) / constant)
            for name, count in turns.items():
                queues[name] = count + (queues.get(name, 0.0) - count) * stays
        for name, count in turns.items():
            mark(self.idle, name, not count, now)
        self.at = now
        return turns

    def forget_old(self, now: float) -> None:
        """Forget reports that are too old."""
        for worker in [worker for worker, report in self.reports.items() if now - report.at > STALE_S]:
            del self.reports[worker]

    def growth(self, policy: str) -> float:
        """Return the turns per second by which a queue grows; below zero where it shrinks."""
        return (self.queues.get(policy, 0.0) - self.before.get(policy, 0.0)) / (TREND_S - SMOOTH_S)

    def sent(self, policy: str) -> bool:
        """Tell whether an engine is asked for a turn of a policy now."""
        return any(policy in report.sent for report in self.reports.values())

    def depth(self, lease_id: int) -> int:
        """Return the turns at an engine, as those say who ask it."""
        return max([report.depths.get(lease_id, 0) for report in self.reports.values()], default=0)

    def queued(self, lease_id: int) -> int:
        """Return the turns that wait at an engine, as those say who ask it."""
        return max([report.queued.get(lease_id, 0) for report in self.reports.values()], default=0)

    def cached(self, lease_id: int) -> int:
        """Return the tokens that an engine's turns have there."""
        return sum(report.cache.get(lease_id, 0) for report in self.reports.values())

    def oldest_report(self, now: float) -> float | None:
        """Return when the oldest report came that counts, None without any."""
        self.forget_old(now)
        return min((report.at for report in self.reports.values()), default=None)

    def loaded(self, policy: str, seconds: float) -> None:
        """Note how long a load of a policy took."""
        if seconds > 0.0:
            before = self.load_s.get(policy, seconds)
            self.load_s[policy] = before + NEWEST * (seconds - before)

    def switch_cost(self, policy: str) -> float:
        """Return the seconds that a load of a policy is expected to take; one never loaded: as long as any."""
        own = self.load_s.get(policy)
        return max(self.load_s.values(), default=0.0) if own is None else own


def mark(since: dict[str, float], name: str, holds: bool, now: float) -> None:
    """Keep since when something holds."""
    if holds:
        since.setdefault(name, now)
    else:
        since.pop(name, None)


def mark_waiting(demand: DemandState, turns: dict[str, int], counts: dict[str, int], now: float) -> None:
    """Note which policies are asked and have no engine."""
    for name, count in turns.items():
        mark(demand.waiting, name, bool(count) and not counts.get(name, 0), now)
