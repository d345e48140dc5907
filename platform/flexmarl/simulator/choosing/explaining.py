"""From what was looked at to what is told: chosen devices, what bounds them, runners-up, or what cannot be had."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.choosing.choosing import DeviceSearch, asked_row, chosen, closest, objective, paths
from flexmarl.simulator.choosing.objectives import (
    Bottleneck,
    DeviceChoice,
    DevicePlan,
    Limit,
    OutOfReach,
    PlannedCost,
    Ranged,
)
from flexmarl.simulator.choosing.setups import work_at
from flexmarl.simulator.choosing.table import limits
from flexmarl.simulator.prediction.profile import Ends
from flexmarl.simulator.prediction.splitting import Change
from flexmarl.simulator.runs import SimulationError

OTHERS = 3
ENDS = (Ends("low", "low"), Ends("high", "high"))
WORDS: dict[Limit, tuple[str, str, str]] = {
    "budget": ("costs at most", "the cheapest costs about", "for the whole run"),
    "budget_per_hour": ("costs at most", "the cheapest costs", "an hour"),
    "budget_per_step": ("costs at most", "the cheapest costs about", "a step"),
    "deadline_s": ("ends within", "the fastest ends after about", "seconds"),
    "steps_per_hour": ("makes", "the fastest makes about", "steps an hour"),
}


@dataclass(frozen=True, slots=True)
class _Row:
    """One row with what its pools are called."""

    search: DeviceSearch
    row: int

    @property
    def text(self) -> str:
        """Say which devices these are."""
        found = self.search.table
        own = found.setups[int(found.setup[self.row])]
        engines, trainers = int(found.engines[self.row]), int(found.trainers[self.row])
        wide = f", {own.each} to an engine" if own.each > 1 else ""
        if own.work.shared:
            return f"{engines * own.each} of {own.rollout.name}{wide}, {trainers} of them shared with trainers"
        return f"{engines * own.each} of {own.rollout.name} for rollout{wide}, {trainers} of {own.training.name}"


def told(
    search: DeviceSearch,
    left_out: tuple[str, ...] = (),
    unmeasured: tuple[str, ...] = (),
    spare: Callable[[], bool] = lambda: True,
) -> DeviceChoice:
    """Return what a search found; `spare` is asked before each simulation of an end of what is known."""
    found, search.spare = search.table, spare
    own, best = asked_row(search), search.best()
    asked = None if own is None or search.reports.get(own) is None else _plan(search, own, ends=False)
    plan = None if best is None else _plan(search, best, ends=True)
    return DeviceChoice(
        best=plan,
        others=() if best is None else tuple(_plan(search, row, ends=False) for row in _others(search, best)),
        asked=asked,
        out_of_reach=_out_of_reach(search) if plan is None and len(found.closed_s) else None,
        looked_at=len(found.closed_s),
        simulated=search.made,
        stopped=search.stopped,
        left_out=left_out,
        unmeasured=unmeasured,
    )


def _others(search: DeviceSearch, best: int) -> Iterator[int]:
    """List the best row of every other setup that keeps the limits, the best first; then others that were simulated."""
    found, kept = search.table, search.allowed()
    value = objective(found, search.question.wish)
    names = [(s.rollout.name, s.training.name, s.each) for s in found.setups]
    rows = dict[tuple[str, str, int], int]()
    for number in sorted({int(found.setup[row]) for row in np.flatnonzero(kept)}):
        own = chosen(found, search.question.wish, kept & (found.setup == number))
        if names[number] != names[int(found.setup[best])]:
            rows[names[number]] = min(rows.get(names[number], own), own, key=lambda row: float(value[row]))
    played = [row for row, report in search.reports.items() if report is not None and kept[row] and row != best]
    listed = dict.fromkeys(sorted(rows.values(), key=lambda row: float(value[row])))
    listed |= dict.fromkeys(sorted(played, key=lambda row: float(value[row])))
    yield from list(listed)[:OTHERS]


def _plan(search: DeviceSearch, row: int, *, ends: bool) -> DevicePlan:
    found, report = search.table, search.reports.get(row)
    own = found.setups[int(found.setup[row])]
    step = _ranged(search, row, simulate=ends and report is not None)
    hours = _hours(search, row, step)
    engines, trainers = int(found.engines[row]), int(found.trainers[row])
    terms = own.work.bounds(engines, trainers, own.lag_bound)
    return DevicePlan(
        rollout_pool=own.rollout.name,
        rollout_devices=engines * own.each,
        engine_devices=own.each,
        training_pool=own.training.name,
        training_devices=trainers,
        shared=own.work.shared,
        lag_bound=own.lag_bound,
        step_s=step,
        hours=hours,
        cost=_cost(step, hours, float(found.per_hour[row])),
        engines_busy=min(1.0, terms["engines"] / float(found.step_s[row])) if report is None else report.busy["engine"],
        trainers_busy=min(1.0, terms["trainers"] / float(found.step_s[row]))
        if report is None
        else report.busy["trainer"],
        simulated=report is not None,
        bottleneck=_bottleneck(terms),
        why=tuple(_why(search, row)),
        changes=tuple(changes_of(search, row)),
    )


def _hours(search: DeviceSearch, row: int, step: Ranged) -> Ranged:
    found = search.table
    most = float("inf") if found.length.limit_s is None else found.length.limit_s

    def whole(step_s: float) -> float:
        return (float(found.start_s[row]) + min(most, found.length.steps * step_s)) / 3600.0

    return Ranged(low=whole(step.low), likely=whole(step.likely), high=whole(step.high))


def _cost(step: Ranged, hours: Ranged, per_hour: float) -> PlannedCost | None:
    """Return what devices cost at a price of an hour; None where that is not known."""
    if np.isnan(per_hour):
        return None
    return PlannedCost(per_hour=per_hour, per_step=_times(step, per_hour / 3600.0), whole=_times(hours, per_hour))


def _times(of: Ranged, by: float) -> Ranged:
    return Ranged(low=of.low * by, likely=of.likely * by, high=of.high * by)


def _ranged(search: DeviceSearch, row: int, *, simulate: bool) -> Ranged:
    """Return seconds per step, and at both ends of what is known: simulated, or by how far the closed form moves."""
    found = search.table
    own, likely = found.setups[int(found.setup[row])], float(found.step_s[row])
    numbers = int(found.engines[row]), int(found.trainers[row]), own.lag_bound
    base = max(own.work.bounds(*numbers).values())
    spec, ends = search.specification(row), []
    for end in ENDS:
        if simulate and spec is not None and search.spare():
            try:
                ends.append(search.play(spec, search.question.speeds(own.speed).profile, end).step_s)
            except SimulationError:
                continue
        elif work := work_at(search.question, own.speed, end):
            ends.append(likely * max(work.bounds(*numbers).values()) / base)
    return Ranged(low=min([likely, *ends]), likely=likely, high=max([likely, *ends]))


def _bottleneck(terms: dict[Bottleneck, float]) -> Bottleneck:
    return max(terms, key=lambda name: terms[name])


def _why(search: DeviceSearch, row: int) -> Iterator[str]:
    """Say what bounds a step, and what one device more of either side would change."""
    found, here = search.table, _Row(search, row)
    own = found.setups[int(found.setup[row])]
    engines, trainers = int(found.engines[row]), int(found.trainers[row])
    terms = own.work.bounds(engines, trainers, own.lag_bound)
    bottleneck = _bottleneck(terms)
    share = f"{_seconds(terms[bottleneck])} of {_seconds(max(terms[bottleneck], float(found.step_s[row])))} a step"
    yield (
        f"On {here.text}: "
        + {
            "engines": f"generation bounds a step: all prompts and replies take {share}.",
            "trainers": f"training bounds a step: gradients and optimizer steps take {share}.",
            "path": f"the path of a cohort bounds a step: its episodes, then gradients and new weights, {share} at lag "
            f"bound {own.lag_bound}.",
        }[bottleneck]
    )
    yield _one_more(search, row, 1, 0)
    if not own.work.shared:
        yield _one_more(search, row, 0, 1)
    derived = search.question.speeds(own.speed).derived_from
    if derived is not None and derived != own.each:
        yield f"Engines of {own.each} devices were not measured: derived from those of {derived}."


def _one_more(search: DeviceSearch, row: int, engines: int, trainers: int) -> str:
    found, wish = search.table, search.question.wish
    own = found.setups[int(found.setup[row])]
    pool = own.rollout.name if engines else own.training.name
    what = "engine" if engines else "trainer device"
    rows = (found.setup == found.setup[row]) & (found.engines == found.engines[row] + engines)
    rows &= found.trainers == found.trainers[row] + trainers
    if not rows.any():
        if trainers and found.trainers[row] >= own.work.training.most:
            return "One more trainer device would have nothing to do: its policies' devices bound it."
        return f"One more {what}: {pool} has none left for this run, or the rules allow none."
    more = int(np.flatnonzero(rows)[0])
    metrics = found.metrics()
    over = [name for name, most in limits(wish) if metrics[name][more] > most * (1.0 + 1e-9)]
    faster = 1.0 - float(found.step_s[more]) / float(found.step_s[row])
    speed = f"a step takes {_percent(faster)} less time" if faster >= 0.005 else "a step takes as long"
    dearer = float(metrics["budget_per_step"][more] / metrics["budget_per_step"][row]) - 1.0
    money = "" if np.isnan(dearer) else f" and costs {_percent(abs(dearer))} {'more' if dearer >= 0.0 else 'less'}"
    beyond = f"; {over[0]} would be exceeded" if over else ""
    return f"One more {what} of {pool}: {speed}{money}{beyond}."


def changes_of(search: DeviceSearch, row: int) -> Iterator[Change]:
    """List what a row changes, the value that stands there first."""
    spec = search.question.spec
    document, after = spec.model_dump(mode="json"), search.specification(row)
    if not isinstance(after, ExperimentSpec):
        return
    changed = after.model_dump(mode="json")
    for path in paths(search, row):
        was, now = document, changed
        for name in path.split("."):
            was, now = was[name], now[name]
        if was != now:
            yield Change(pointer="/" + path.replace(".", "/"), before=was, value=now)


def _out_of_reach(search: DeviceSearch) -> OutOfReach | None:
    """Say which limit nothing keeps, and the best that there is."""
    name, row = closest(search)
    if not name:
        return None
    limit: Limit = next(one for one in WORDS if one == name)
    metric, asked = float(search.table.metrics()[name][row]), float(getattr(search.question.wish, name))
    best = 3600.0 / metric if limit == "steps_per_hour" else metric
    does, reached, unit = WORDS[limit]
    text = f"No devices are known with which the run {does} {asked:g} {unit}; {reached} {_figure(best)}, with "
    return OutOfReach(limit=limit, asked=asked, best=best, text=text + _Row(search, row).text + ".")


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _seconds(value: float) -> str:
    return f"{_figure(value)} s"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
