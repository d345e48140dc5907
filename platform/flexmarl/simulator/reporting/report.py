"""What a simulation came to: time per step, throughput, where held device time went, lag, and work that was wasted.

Everything is read from the trace and from the metrics that the core itself writes, over the steps that count; no model
adds a figure of its own.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal

from flexmarl.contracts.rulings import RulingKind
from flexmarl.simulator.devices.losses import DeviceLoss
from flexmarl.simulator.devices.trace import BUSY, DeviceTenure, TraceInterval
from flexmarl.simulator.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from flexmarl.simulator.cluster.cluster import Cluster

Use = Literal["engine", "trainer"]
Cause = Literal["tail", "training", "rollout", "weights", "swap", "other"]
USES: tuple[Use, Use] = ("engine", "trainer")
_MOVES = (RulingKind.ENGINE_MOVED, RulingKind.ENGINE_EMPTIED)
CAUSES: tuple[Cause, ...] = ("weights", "swap", "tail", "training", "rollout", "other")
EXPLAINED: dict[Cause, str] = {
    "weights": "loading new weights",
    "swap": "starting, binding or suspending a policy",
    "tail": "other devices of its kind were busy",
    "training": "engines idle while a trainer was busy",
    "rollout": "trainers idle while an engine was busy",
    "other": "all devices idle: environments, and commands in transit",
}


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """Seconds and counts over the steps that count."""

    steps: tuple[float, ...]
    """How long each step took."""
    began: float
    ended: float
    rollouts: tuple[float, ...]
    """How long each step's cohort was played: from its first task until it had all the groups it needs."""
    tokens: int
    """Reply tokens that were trained."""
    rows: int
    """Rows that were."""
    trained_share: float
    """Reply tokens that were trained over those that engines made, from the start of the simulation: what lies ready
    or is on its way at the end counts as not trained."""
    length_ratio: float
    """Mean length of trained rows over that of generated ones, of the policy where it is smallest; below 1 long replies
    are trained less often than they are made."""
    busy: dict[Use, float]
    """Share of held device time that was work."""
    idle: dict[Use, dict[Cause, float]]
    """Share of held device time by why it was not; with `busy` it adds up to 1."""
    lag: dict[str, float]
    """Policy -> mean versions between the weights that began its rows and those that were trained on them."""
    lag_max: float
    """The most of these."""
    lag_done: float
    """Mean versions that were committed between a row's beginning and its group's settling."""
    swaps: int
    moves: int
    lost_s: float
    """Device time without a child that works, by faults, up to the end."""
    recovery_s: float
    """Mean time from a loss until the device, or another one, works again."""
    redone_tokens: int
    """Tokens whose gradient was computed again, up to the end."""
    replayed_tokens: float
    """Reply tokens of episodes that were played again since their rollout worker was lost, up to the end."""
    losses: tuple[DeviceLoss, ...]
    handled: int
    """Facts that the core decided on, from the start of the simulation."""
    events: int
    """Everything that happened, from the start of the simulation."""
    intervals: tuple[TraceInterval, ...]
    held: dict[int, DeviceTenure]
    """Lease -> device and time."""

    @property
    def uses(self) -> dict[int, str]:
        """Lease -> `engine` or `trainer`."""
        return {lease: held.use for lease, held in self.held.items()}

    @property
    def held_s(self) -> dict[Use, float]:
        """Return the device seconds that were held, by use; a device that engine and trainer share is a trainer's."""
        shared = {own.beside for own in self.held.values()}
        found: dict[Use, float] = dict.fromkeys(USES, 0.0)
        for lease, own in self.held.items():
            if not own.beside:
                found["engine" if own.use == "engine" and lease not in shared else "trainer"] += self._held(own)
        return found

    @property
    def device_busy(self) -> float:
        """Return the share of held device time that was work of engines or trainers, shared devices counted once."""
        leased: dict[str, float] = dict.fromkeys(USES, 0.0)
        for own in self.held.values():
            leased[own.use] += self._held(own)
        return sum(self.busy[use] * leased[use] for use in USES) / sum(self.held_s.values())

    def _held(self, own: DeviceTenure) -> float:
        return min(self.ended, own.until) - max(self.began, own.since)

    @property
    def step_s(self) -> float:
        """Return the mean time per step: what a run of many steps takes, divided by them."""
        return (self.ended - self.began) / len(self.steps)

    @property
    def tokens_s(self) -> float:
        """Return trained tokens a second."""
        return self.tokens / (self.ended - self.began)

    def figures(self) -> dict[str, float]:
        """Return what a table shows."""
        shown = {
            "step_s": self.step_s,
            "step_median_s": median(self.steps),
            "rollout_s": fmean(self.rollouts),
            "tokens_s": self.tokens_s,
            "rows_s": self.rows / (self.ended - self.began),
            "engine_busy": self.busy["engine"],
            "trainer_busy": self.busy["trainer"],
            "device_busy": self.device_busy,
            "trained_share": self.trained_share,
            "length_ratio": self.length_ratio,
            "lag": fmean(self.lag.values()) if self.lag else 0.0,
            "lag_max": self.lag_max,
            "lag_done": self.lag_done,
            "swaps": float(self.swaps),
            "moves": float(self.moves),
            "lost_s": self.lost_s,
            "recovery_s": self.recovery_s,
            "redone_tokens": float(self.redone_tokens),
            "replayed_tokens": self.replayed_tokens,
        }
        return {name: round(value, 6) for name, value in shown.items()}


def report(scenario: Scenario, cluster: "Cluster") -> SimulationReport:
    """Read a finished simulation."""
    first, last = scenario.warm_up, scenario.warm_up + scenario.steps
    times = [0.0, *cluster.log.stepped][first : last + 1]
    trained = [0, *cluster.log.trained]
    rows = [0, *cluster.log.rows]
    began, ended = times[0], times[-1]
    intervals = tuple(i for i in cluster.trace.until(ended) if i.ended > began and i.began < ended)
    held = {n: h for n, h in cluster.trace.held.items() if h.since < ended and h.until > began}
    busy, idle = shares(intervals, held, began, ended)
    losses = cluster.hosting.losses
    return SimulationReport(
        steps=tuple(after - before for before, after in pairwise(times)),
        began=began,
        ended=ended,
        rollouts=_rollouts(cluster, first, last),
        tokens=trained[last] - trained[first],
        rows=rows[last] - rows[first],
        trained_share=trained[last] / cluster.hosting.made(),
        length_ratio=min(_means(cluster, "length/trained_ratio", first, last).values(), default=1.0),
        busy=busy,
        idle=idle,
        lag=_means(cluster, "staleness/start", first, last),
        lag_done=fmean(_means(cluster, "staleness/completion", first, last).values() or (0.0,)),
        lag_max=max(chain(*_series(cluster, "staleness/start", "max", first, last).values()), default=0.0),
        swaps=sum(i.kind == "suspend" for i in intervals),
        moves=sum(ruling.kind in _MOVES for _, ruling in cluster.log.rulings),
        lost_s=losses.lost_s(ended),
        recovery_s=losses.recovery_s(),
        redone_tokens=losses.redone_tokens,
        replayed_tokens=losses.replayed_tokens,
        losses=tuple(losses.found),
        handled=cluster.driver.handled,
        events=cluster.clock.events,
        intervals=intervals,
        held=held,
    )


def _rollouts(cluster: "Cluster", first: int, last: int) -> tuple[float, ...]:
    """Return how long the cohorts of these steps played; a cohort's number is that of its step."""
    log = cluster.log
    settled = {own.cohort: when for when, own in log.rulings if own.kind is RulingKind.COHORT_SETTLED}
    return tuple(settled[no] - log.opened[no] for no in range(first, last))


def _series(cluster: "Cluster", name: str, stat: str, first: int, last: int) -> dict[str, list[float]]:
    """Return by policy what the core wrote of the steps that count."""
    found = defaultdict(list)
    for metric in cluster.log.metrics:
        if metric.name == name and metric.stat == stat and first < metric.step <= last:
            found[metric.agent].append(metric.value)
    return dict(sorted(found.items()))


def _means(cluster: "Cluster", metric: str, first: int, last: int) -> dict[str, float]:
    """Return each policy's mean of a metric's means over the steps that count."""
    return {name: fmean(values) for name, values in _series(cluster, metric, "mean", first, last).items()}


@dataclass(slots=True)
class _DeviceCounts:
    """Number of devices of one use by activity at one moment."""

    held: int = 0
    doing: dict[int, list[str]] = field(default_factory=dict)
    at_work: int = 0
    loading: int = 0
    swapping: int = 0

    def hold(self, lease: int) -> None:
        """Count a device in."""
        self.held += 1
        self.doing[lease] = []

    def free(self, lease: int) -> None:
        """Count a device out; whatever it did has ended."""
        self.held -= 1
        self._count(self.doing.pop(lease), -1)

    def change(self, interval: TraceInterval, begins: bool) -> None:
        """Let a device begin or end with something."""
        kinds = self.doing.get(interval.lease_id)
        if kinds is None:
            return
        self._count(kinds, -1)
        if begins:
            kinds.append(interval.kind)
        else:
            kinds.remove(interval.kind)
        self._count(kinds, 1)

    def _count(self, kinds: list[str], sign: int) -> None:
        if any(kind in BUSY for kind in kinds):
            self.at_work += sign
        elif "load" in kinds:
            self.loading += sign
        elif kinds:
            self.swapping += sign


_HOLD, _BEGIN, _END, _FREE = range(4)
"""What happens at one moment, in this order."""


def shares(
    intervals: Sequence[TraceInterval], held: Mapping[int, DeviceTenure], began: float, ended: float
) -> tuple[dict[Use, float], dict[Use, dict[Cause, float]]]:
    """Go through the window from edge to edge; each device's time between two edges has one cause."""
    edges: list[tuple[float, int, int, TraceInterval | None]] = []
    for lease, its in held.items():
        edges.append((max(began, its.since), _HOLD, lease, None))
        edges.append((min(ended, its.until), _FREE, lease, None))
    for one in intervals:
        edges.append((max(began, one.began), _BEGIN, one.lease_id, one))
        edges.append((min(ended, one.ended), _END, one.lease_id, one))
    edges.sort(key=lambda edge: edge[:2])
    all_of: dict[Use, _DeviceCounts] = {use: _DeviceCounts() for use in USES}
    busy: dict[Use, float] = dict.fromkeys(USES, 0.0)
    idle: dict[Use, dict[Cause, float]] = {use: dict.fromkeys(CAUSES, 0.0) for use in USES}
    at = began
    for when, what, lease, interval in edges:
        if when > at:
            _add(all_of, when - at, busy, idle)
            at = when
        own = all_of["engine" if held[lease].use == "engine" else "trainer"]
        if interval is not None:
            own.change(interval, what == _BEGIN)
        elif what == _HOLD:
            own.hold(lease)
        else:
            own.free(lease)
    for use in USES:
        total = sum(min(ended, h.until) - max(began, h.since) for h in held.values() if h.use == use) or 1.0
        busy[use] /= total
        idle[use] = {cause: seconds / total for cause, seconds in idle[use].items()}
    return busy, idle


def _add(
    all_of: dict[Use, _DeviceCounts], seconds: float, busy: dict[Use, float], idle: dict[Use, dict[Cause, float]]
) -> None:
    """Add the device time between two edges to what every device did in it."""
    for use, own in all_of.items():
        other = all_of["trainer" if use == "engine" else "engine"]
        busy[use] += seconds * own.at_work
        idle[use]["weights"] += seconds * own.loading
        idle[use]["swap"] += seconds * own.swapping
        left = own.held - own.at_work - own.loading - own.swapping
        idle[use][_cause(use, own, other)] += seconds * left


def _cause(use: Use, own: _DeviceCounts, other: _DeviceCounts) -> Cause:
    if own.at_work:
        return "tail"
    if other.at_work:
        return "training" if use == "engine" else "rollout"
    return "other"
