"""The advisor's rules: rows in, advisories out. Pure; `advice.py` reads the rows.

Invariants: an advisory states fact, size and basis and names the chart that proves it; alarms silence tips; a run
that does not work (draft, queued, paused, ended) gets none. Thresholds stand in `THRESHOLDS` and nowhere else;
docs/advisor.md says what each rule looks at, and a test compares the two.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean, median

from flexmarl.contracts.commands import COMMAND_KINDS
from flexmarl.controlplane.telemetry.advisor.phrases import name_of, percent, span
from flexmarl.store.reads.advisor_inputs import OpenWork, SeriesEnds


class Severity(StrEnum):
    TIP = "tip"
    WATCH = "watch"
    ALARM = "alarm"


class AdviceVerdict(StrEnum):
    HEALTHY = "healthy"
    WATCH = "watch"
    DEGRADED = "degraded"
    STALLED = "stalled"


THRESHOLDS: dict[str, dict[str, float]] = {
    "stalled": {"watch_factor": 4, "watch_s": 15, "alarm_factor": 8, "alarm_s": 30, "first_s": 600},
    "staleness": {},
    "mismatch": {"alarm_kl": 0.05, "growth": 5, "growth_above": 0.005, "steps": 30},
    "failed_episodes": {"watch_share": 0.05, "alarm_share": 0.2},
    "entropy_collapse": {"share": 0.25, "steps": 25, "solved": 0.9, "rise": 0.02},
    "dead_groups": {"share": 0.5, "steps": 5, "solved": 0.9, "rise": 0.02},
    "truncation": {"share": 0.25, "samples": 32},
    "starved_trainer": {"share": 0.5, "steps": 5},
    "skewed_agents": {"ratio": 3},
    "skewed_engines": {"points": 0.3},
}
NAMES = (
    "time/step", "time/rollout", "time/wait_samples", "episodes/failed", "groups/useful", "train/entropy",
    "train/kl_engine", "staleness/own_max", "reward/team", "eval/solved",
)  # fmt: skip
"""Series that the rules look at."""


@dataclass(frozen=True, slots=True)
class Advisory:
    """One finding. `chart` is (tab, figure) of the run page that proves it."""

    rule: str
    severity: Severity
    title: str
    text: str
    change: str
    chart: tuple[str, str]
    basis: str
    agent: str = ""
    evidence: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one run. Times in seconds since the epoch."""

    status: str
    now: float
    status_since: float
    last_event: float
    waiting_for: str = ""
    series: Mapping[tuple[str, str, str], SeriesEnds] = field(default_factory=dict)
    work: Sequence[OpenWork] = ()
    episodes_per_step: int = 0
    lag_bound: int = 0
    truncated: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Policy -> (truncated, samples) of the newest episode groups."""
    whole: frozenset[str] = frozenset()
    """Policies whose replies always have the length that the environment asks for: none of them is cut off."""
    optimum: float = 0.0
    """Highest reachable mean team score of the environment; 0 when it is not known."""
    rollout_s: Mapping[str, float] = field(default_factory=dict)
    """Policy -> engine seconds in the window; empty when intervals were not read."""
    engine_busy: Mapping[str, float] = field(default_factory=dict)
    """Engine device -> busy share in the window."""
    window_words: str = ""

    def ends(self, name: str, stat: str = "mean") -> Iterator[SeriesEnds]:
        """Yield the series of a name, one per agent."""
        return (ends for key, ends in sorted(self.series.items()) if (key[0], key[2]) == (name, stat))

    def newest(self, name: str, stat: str = "mean") -> tuple[float, ...]:
        """Return the newest values of a team series, newest first."""
        found = self.series.get((name, "", stat))
        return found.newest if found else ()

    def solved(self, share: float) -> bool:
        """Tell whether the team does this share of what there is to do: of the reward, or of the held-out tasks.

        Training episodes are drawn, evaluations are greedy: a team that has converged may earn less where it explores.
        """
        earned = self.newest("reward/team")[:5]
        if earned and self.optimum > 0 and fmean(earned) >= share * self.optimum:
            return True
        return any(solved >= share for solved in self.newest("eval/solved")[:1])

    def rises(self, by: float) -> bool:
        """Tell whether the team still learns: its reward of the newest 20 steps rose by this share of the optimum from
        their first half to the second, or one of the newest two evaluations solved as much more than any before."""
        earned, evaluated = self.newest("reward/team"), self.newest("eval/solved")
        if len(earned) >= 20 and fmean(earned[:10]) - fmean(earned[10:20]) >= by * self.optimum > 0:
            return True
        return len(evaluated) > 2 and max(evaluated[:2]) - max(evaluated[2:]) >= by


Rule = Callable[[Facts], Iterator[Advisory]]
WORKING = frozenset({"starting", "running", "pausing", "resuming", "stopping"})


def _phase(kind: str) -> str:
    """Name the phase that lasts while commands of a kind are open."""
    about = COMMAND_KINDS.get(kind)
    return kind if about is None else about.phase or kind


def stalled(facts: Facts) -> Iterator[Advisory]:
    """An open phase is far beyond its own median, or nothing has been asked of anybody for as long."""
    limits = THRESHOLDS["stalled"]
    oldest = min(facts.work, key=lambda work: work.since, default=None)
    since = facts.last_event if oldest is None else oldest.since
    age = facts.now - since
    name = "time/rollout" if oldest is not None and oldest.kind == "play_groups" else "time/step"
    usual = facts.newest(name) or facts.newest("time/step")
    what = "No command has been issued" if oldest is None else _phase(oldest.kind)
    who = f" of {oldest.policy}" if oldest is not None and oldest.policy else ""
    basis = "no step is finished yet"
    severity: Severity | None = Severity.ALARM if age > limits["first_s"] else None
    size = f"has been open for {span(age)}" if oldest is not None else f"for {span(age)}"
    if usual:
        yardstick = median(usual)
        basis = f"median of the last {len(usual)} steps"
        severity = _beyond(age, yardstick, limits)
        times = f"{age / yardstick:.0f} times " if yardstick > 0 else ""
        size = f"{size}, {times}its median of {span(yardstick)}" if oldest is not None else f"{size}, {times}a step"
    if severity is not None:
        waits = f" The run waits for {facts.waiting_for}." if facts.waiting_for else ""
        yield Advisory(
            "stalled",
            severity,
            "Stalled" if severity is Severity.ALARM else "Slower than usual",
            f"{what}{who} {size}.{waits}",
            "Check the devices and the logs since then; pause and resume to restart the step.",
            ("pipeline", "lanes"),
            basis,
            "" if oldest is None else oldest.policy,
            {"open_s": age, "since": since, "median_s": median(usual) if usual else 0.0},
        )


def _beyond(age: float, usual: float, limits: Mapping[str, float]) -> Severity | None:
    if age > max(limits["alarm_factor"] * usual, limits["alarm_s"]):
        return Severity.ALARM
    return Severity.WATCH if age > max(limits["watch_factor"] * usual, limits["watch_s"]) else None


def staleness(facts: Facts) -> Iterator[Advisory]:
    """A sample was older than the bound allows: a defect, whatever its size."""
    for ends in facts.ends("staleness/own_max", "max"):
        worst = max(ends.newest, default=0.0)
        if worst > facts.lag_bound:
            yield Advisory(
                "staleness",
                Severity.ALARM,
                "Staleness above the bound",
                f"{name_of(ends.agent)} trained on samples {worst:g} versions behind; the bound is {facts.lag_bound}.",
                "Stop the run and report this bug: staleness must never exceed the bound.",
                ("pipeline", "staleness"),
                f"last {len(ends.newest)} steps",
                ends.agent,
                {"lag": worst, "bound": facts.lag_bound},
            )


def mismatch(facts: Facts) -> Iterator[Advisory]:
    """Engine and trainer disagree about the probability of the same tokens, or do so more and more."""
    limits = THRESHOLDS["mismatch"]
    for ends in facts.ends("train/kl_engine"):
        if not ends.newest:
            continue
        now, before = median(ends.newest[:10]), median(ends.first)
        grows = ends.points >= limits["steps"] and now > limits["growth"] * before and now > limits["growth_above"]
        if now > limits["alarm_kl"] or grows:
            above = now > limits["alarm_kl"]
            yield Advisory(
                "mismatch",
                Severity.ALARM if above else Severity.WATCH,
                "Trainer and engine disagree",
                f"KL of engine and trainer of {ends.agent} is {now:.2g} nats, "
                + (
                    f"above {limits['alarm_kl']:g}." if above else f"{now / before:.0f} times its first-20-step median."
                ),
                "Compare precision and attention kernels of engine and trainer, or correct with truncated importance "
                "weights.",
                ("metrics", "train/kl_engine"),
                "median of the last 10 steps",
                ends.agent,
                {"kl": now, "first_kl": before},
            )


def failed_episodes(facts: Facts) -> Iterator[Advisory]:
    """Too many episodes failed."""
    limits, found = THRESHOLDS["failed_episodes"], facts.newest("episodes/failed", "sum")
    if not found or not facts.episodes_per_step:
        return
    of = facts.episodes_per_step * len(found)
    share = sum(found) / of
    if share > limits["watch_share"]:
        yield Advisory(
            "failed_episodes",
            Severity.ALARM if share > limits["alarm_share"] else Severity.WATCH,
            "Episodes fail",
            f"{sum(found):g} of {of} episodes failed, {percent(share)}.",
            "Read the reasons in the failed trajectories; for an environment that hangs, set a shorter timeout.",
            ("trajectories", "?status=failed"),
            f"last {len(found)} steps",
            "",
            {"share": share, "failed": sum(found), "episodes": of},
        )


def entropy_collapse(facts: Facts) -> Iterator[Advisory]:
    """An agent has stopped exploring, and the team neither learns any more nor has it solved its task.

    A team that learns becomes sure of itself: falling entropy alone is no failure.
    """
    limits = THRESHOLDS["entropy_collapse"]
    if facts.solved(limits["solved"]) or facts.rises(limits["rise"]):
        return
    for ends in facts.ends("train/entropy"):
        if ends.points < limits["steps"]:
            continue
        begun, now = median(ends.first), median(ends.newest[:5])
        if begun > 0 and now < limits["share"] * begun:
            yield Advisory(
                "entropy_collapse",
                Severity.WATCH,
                "Entropy collapsed",
                f"{name_of(ends.agent)} entropy fell to {percent(now / begun)} of its first-20-step median "
                "while the team's reward does not rise.",
                "Raise the entropy coefficient or lower the learning rate of this policy.",
                ("metrics", "train/entropy"),
                "median of the last 5 steps",
                ends.agent,
                {"entropy": now, "first": begun, "share": now / begun},
            )


def dead_groups(facts: Facts) -> Iterator[Advisory]:
    """Most groups teach nothing, and the team does not learn. A solved task has no other groups."""
    limits, found = THRESHOLDS["dead_groups"], facts.newest("groups/useful", "share")
    if len(found) < limits["steps"] or facts.solved(limits["solved"]) or facts.rises(limits["rise"]):
        return
    dead = 1.0 - fmean(found)
    if dead >= limits["share"] - 1e-9:
        yield Advisory(
            "dead_groups",
            Severity.WATCH,
            "Groups without learning signal",
            f"{percent(dead)} of the episode groups had no variance in their scores.",
            "Draw harder or easier tasks, or use more members per group.",
            ("overview", "group_signal"),
            f"last {len(found)} steps",
            "",
            {"share": dead},
        )


def truncation(facts: Facts) -> Iterator[Advisory]:
    """Responses end because their length is used up, though the environment would have let them go on."""
    limits = THRESHOLDS["truncation"]
    for policy, (cut, of) in sorted(facts.truncated.items()):
        if policy not in facts.whole and of >= limits["samples"] and cut / of >= limits["share"]:
            yield Advisory(
                "truncation",
                Severity.WATCH,
                "Responses truncated",
                f"{percent(cut / of)} of the responses of {policy} ended at their length limit.",
                "Raise the response limit of this agent, or reward shorter answers.",
                ("trajectories", ""),
                f"newest {of} samples",
                policy,
                {"share": cut / of, "samples": of},
            )


def starved_trainer(facts: Facts) -> Iterator[Advisory]:
    """Trainers wait for samples during most of a step."""
    limits = THRESHOLDS["starved_trainer"]
    waits, steps = facts.newest("time/wait_samples"), facts.newest("time/step")
    if min(len(waits), len(steps)) < limits["steps"] or sum(steps) <= 0:
        return
    share = sum(waits) / sum(steps[: len(waits)])
    if share >= limits["share"]:
        yield Advisory(
            "starved_trainer",
            Severity.TIP,
            "The trainer waits for samples",
            f"Trainers waited for samples {span(fmean(waits))} of {span(fmean(steps))} per step, {percent(share)}.",
            "Add an engine, or use fewer groups per micro-batch, so that training starts earlier.",
            ("pipeline", "trainer_time"),
            f"last {len(waits)} steps",
            "",
            {"share": share, "wait_s": fmean(waits), "step_s": fmean(steps)},
        )


def skewed_agents(facts: Facts) -> Iterator[Advisory]:
    """One agent needs much more engine time than the others."""
    seconds = {policy: s for policy, s in facts.rollout_s.items() if policy}
    if len(seconds) < 2 or fmean(seconds.values()) <= 0:
        return
    policy = max(seconds, key=lambda name: seconds[name])
    others = fmean(s for name, s in seconds.items() if name != policy)
    if seconds[policy] >= THRESHOLDS["skewed_agents"]["ratio"] * others:
        more = f"{seconds[policy] / others:.1f} times" if others > 0 else "all of"
        yield Advisory(
            "skewed_agents",
            Severity.TIP,
            "Load is skewed between agents",
            f"{name_of(policy)} took {span(seconds[policy])} of engine time, {more} the mean of the others.",
            "Give this policy its own engine.",
            ("timeline", "agents"),
            facts.window_words,
            policy,
            {"seconds": seconds[policy], "others": others},
        )


def skewed_engines(facts: Facts) -> Iterator[Advisory]:
    """One engine works much more than another."""
    if len(facts.engine_busy) < 2:
        return
    low, high = (pick(facts.engine_busy, key=lambda d: facts.engine_busy[d]) for pick in (min, max))
    gap = facts.engine_busy[high] - facts.engine_busy[low]
    if gap >= THRESHOLDS["skewed_engines"]["points"]:
        yield Advisory(
            "skewed_engines",
            Severity.TIP,
            "Load is skewed between engines",
            f"{high} was busy {percent(facts.engine_busy[high])} of the time, {low} {percent(facts.engine_busy[low])}.",
            "Check that both engines serve all policies, and that no long episodes are pinned to one of them.",
            ("timeline", "tl-chart"),
            facts.window_words,
            "",
            {"high": facts.engine_busy[high], "low": facts.engine_busy[low]},
        )


RULES: tuple[Rule, ...] = (
    stalled, staleness, mismatch, failed_episodes, entropy_collapse, dead_groups, truncation, starved_trainer,
    skewed_agents, skewed_engines,
)  # fmt: skip
"""In the order in which advisories of one severity are shown."""
_ORDER = (Severity.ALARM, Severity.WATCH, Severity.TIP)


def advise(facts: Facts) -> list[Advisory]:
    """Return a run's advisories, worst first. Alarms silence tips."""
    if facts.status not in WORKING:
        return []
    found = [advisory for rule in RULES for advisory in rule(facts)]
    if any(advisory.severity is Severity.ALARM for advisory in found):
        found = [advisory for advisory in found if advisory.severity is not Severity.TIP]
    return sorted(found, key=lambda advisory: _ORDER.index(advisory.severity))


def verdict_of(advisories: Sequence[Advisory]) -> AdviceVerdict:
    """Say in one word how a working run is."""
    alarms = [advisory for advisory in advisories if advisory.severity is Severity.ALARM]
    if any(advisory.rule == "stalled" for advisory in alarms):
        return AdviceVerdict.STALLED
    if alarms:
        return AdviceVerdict.DEGRADED
    watched = any(advisory.severity is Severity.WATCH for advisory in advisories)
    return AdviceVerdict.WATCH if watched else AdviceVerdict.HEALTHY
