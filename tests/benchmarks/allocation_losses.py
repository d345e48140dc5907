"""Where the time of devices goes that no row needs, by cause: from spans of work and from what the core knew meanwhile.

Invariants: every moment of every device between two times has one cause; the causes sum up to devices times time.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

from flexmarl.contracts.events import DeviceUse
from flexmarl.orchestrator.state.tree import RunState

WORK = "work"
"""Rows, and one optimizer step for each policy on one device: what the lower bound counts."""
CAUSES = {
    "rows_do_not_divide": "a rank has one row more than another of its gang, which waits for it",
    "steps_of_gangs": "an optimizer step keeps all ranks of a gang, and the bound counts one",
    "swaps": "a policy is suspended, bound or brought back, or its gang formed",
    "on_the_way": "the device's policy has work, and its next command, or the last one's answer, is on its way",
    "rollout": "nothing that is cut is left to do anywhere",
    "wanted": "nobody on the device has work, while a policy that has waits for devices",
    "others_work": "nobody on the device has work; all work left is of policies that are at work elsewhere",
}


@dataclass
class Trace:
    """What each device did, and how it stood while it did nothing."""

    spans: list[tuple[int, float, float, str]] = field(default_factory=list)
    """Device, begin, end, cause."""
    states: list[tuple[float, dict[int, str]]] = field(default_factory=list)
    """Since when -> cause of each device that does nothing."""
    useful: list[tuple[float, float, str]] = field(default_factory=list)
    """When something useful was done, how much less of it a single device would have needed, and why."""

    def span(self, gang: tuple[int, ...], begin: float, end: float, cause: str, useful: float, less: str) -> None:
        """Note what a gang did. `useful`: device-seconds of it that the bound counts; the rest is due to `less`."""
        self.spans += [(device, begin, end, cause) for device in gang]
        if cause == WORK:
            self.useful.append((end, len(gang) * (end - begin) - useful, less))

    def stands(self, now: float, state: RunState) -> None:
        """Note how the devices stand from now on."""
        self.states.append((now, idle_causes(state)))


def idle_causes(state: RunState) -> dict[int, str]:
    """Say of every trainer why it would be idle now."""
    cohort = state.cohort
    working = {
        name
        for name, own in (cohort.policies.items() if cohort is not None else ())
        if f"step:{name}" in state.outstanding or any(not m.accumulated for m in own.micro_batches)
    }
    waits = any(not state.policies[name].placement.gang for name in working)
    causes = {}
    for lease in state.fleet.of_use(DeviceUse.TRAINER):
        there = {name for name, policy in state.policies.items() if lease.lease_id in policy.placement.gang}
        if there & working:
            causes[lease.lease_id] = "on_the_way"
        elif any(f"suspend:{name}" in state.outstanding for name in there):
            causes[lease.lease_id] = "swaps"
        elif not working:
            causes[lease.lease_id] = "rollout"
        else:
            causes[lease.lease_id] = "wanted" if waits else "others_work"
    return causes


def lost(trace: Trace, begin: float, end: float) -> dict[str, float]:
    """Return the device-seconds of each cause, and of work, between two times."""
    total: Counter[str] = Counter({WORK: 0.0, **dict.fromkeys(CAUSES, 0.0)})
    devices = sorted({device for _, causes in trace.states for device in causes})
    for device in devices:
        own = sorted((max(b, begin), min(e, end), cause) for d, b, e, cause in trace.spans if d == device)
        at = begin
        for started, ended, cause in [*own, (end, end, WORK)]:
            if started > at:
                _idle(trace, device, at, started, total)
            total[cause] += max(0.0, ended - max(started, at))
            at = max(at, ended)
    for when, seconds, cause in trace.useful:
        if begin < when <= end:
            total[WORK] -= seconds
            total[cause] += seconds
    return dict(total)


def _idle(trace: Trace, device: int, begin: float, end: float, total: Counter[str]) -> None:
    """Share an idle time out among the causes there were meanwhile."""
    place = max(0, bisect_right(trace.states, begin, key=lambda mark: mark[0]) - 1)
    while place < len(trace.states) and trace.states[place][0] < end:
        at, causes = trace.states[place]
        until = trace.states[place + 1][0] if place + 1 < len(trace.states) else end
        total[causes.get(device, "rollout")] += max(0.0, min(end, until) - max(begin, at))
        place += 1
