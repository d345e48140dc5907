"""What a search may change of a scenario, setting by setting: values to draw from, and what is one step away from one.

Invariants: every value is one that a user could give; a layout uses all devices of the run, no more and no fewer; what
is one step away depends on the specification alone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from flexmarl.contracts.specification import ExperimentSpec

Values = tuple[Any, ...]
Steps = Mapping[str, Any]
"""What a step is called, the same from wherever it is taken -> the value it leads to."""
LAYOUT = "layout"
"""The choice of how the devices are split; it is laid over `spec.resources` and `spec.policies`."""
WIDE, NARROW = 4.0, 2.0
"""A number's neighbours are so many times less and more."""

_EXTRA = {"type": "extra_groups", "surplus": "join"}


@dataclass(frozen=True, slots=True)
class SearchAxis:
    path: str
    """Where a value goes, `layout` or a dotted path below `spec`."""
    values: Values
    """To draw from."""
    near: Callable[[ExperimentSpec, float], Steps]
    """What is one step away from what a specification has; numbers so many times less and more."""
    ordered: bool = False
    """It is a number: if one value of it makes no difference, others make none."""


def axes(spec: ExperimentSpec, total: int, learns: Mapping[str, float], bound: int) -> list[SearchAxis]:
    """List what may be changed.

    `total` counts the devices; `learns` is what each policy's gradients of a step take on one of them.
    """
    batch, episodes = spec.batch, spec.batch.tasks_per_step * spec.batch.episodes_per_task
    tasks = batch.tasks_per_step
    found = [
        _layouts(total, learns),
        _amount("batch.micro_batch_groups", (1, 2, 4, 8, 16), 1, tasks),
        _amount("batch.rollout_groups", (1, 4), 1, tasks),
        _amount("mechanisms.parallel.episodes", (64, 128, 256, 512, None), 1, 65_536, unlimited=episodes),
        _choice("mechanisms.parallel.members", (None, max(1, batch.episodes_per_task // 2))),
        _choice("mechanisms.mover.type", ("static", "demand")),
        _amount("mechanisms.mover.delta", (1.0, 2.0, 5.0, 10.0), 0.1, 1000.0),
        _amount("mechanisms.mover.hold_s", (2.0, 5.0, 15.0), 0.5, 600.0),
        _choice("mechanisms.router.type", ("least_loaded", "length_aware", "version_aware")),
        _choice("mechanisms.publication.type", ("cohort", "wavefront", *(("delayed",) if bound else ()))),
        _choice("mechanisms.trainer_protocol", ("micro_batch", "per_group", "batch")),
        _choice("mechanisms.allocation.type", ("agent_centric", "static")),
        _amount("mechanisms.allocation.patience_s", (2.0, 10.0, 60.0), 0.5, 600.0),
        _choice("mechanisms.redundancy", ("none", *(_EXTRA | {"extra": many} for many in (2, 4)))),
    ]  # fmt: skip
    if bound:
        found += [
            _choice("mechanisms.lag_policy.bound", tuple(range(bound + 1))),
            _choice("mechanisms.lag_policy.at_admission", ("admit", "wait")),
            _choice("mechanisms.lag_policy.in_flight", ("finish", "continue", "resume")),
        ]
    return found


def laid(path: str, value: Any) -> dict[str, Any]:
    """Return what is laid over a scenario for a value."""
    placed: Any = value
    for part in reversed(path.split(".") if path != LAYOUT else ()):
        placed = {part: placed}
    return {"spec": placed}


def devices(spec: ExperimentSpec) -> int:
    """Count the devices that a run holds: trainers that share those of engines have none of their own."""
    return spec.resources.most_rollout_devices + spec.own_trainers


def by_work(training: int, learns: Mapping[str, float]) -> dict[str, int]:
    """Share trainer devices out so that the slowest policy takes as little as can be; each has one at least."""
    gangs = dict.fromkeys(sorted(learns), 1)
    for _ in range(training - len(gangs)):
        slowest = max(gangs, key=lambda name: learns[name] / gangs[name])
        gangs[slowest] += 1
    return gangs


def balanced(spec: ExperimentSpec, total: int, learns: Mapping[str, float], engines_s: float) -> dict[str, Any]:
    """Return the layout with which a step would take least if no device ever stood. `engines_s` is on one engine."""
    if spec.mechanisms.allocation.type == "colocated":
        return _gangs(total, total, dict.fromkeys(learns, 1))

    def takes(training: int) -> float:
        gangs = by_work(training, learns)
        return max(engines_s / (total - training), *(learns[name] / gangs[name] for name in learns))

    training = min(range(min(len(learns), total - 1), total), key=takes)
    return _gangs(total - training, training, by_work(training, learns))


def _layouts(total: int, learns: Mapping[str, float]) -> SearchAxis:
    names = sorted(learns)
    parts = sorted({max(1, round(total * part / 24)) for part in (3, 4, 5, 6, 7, 8, 10, 12)} & set(range(1, total)))
    elastic = [_elastic(total, part, names, most) for part in parts for most in (1, 2, part) if most <= part]
    fixed = [_fixed(total, by_work(part, learns)) for part in parts if part >= len(names)]
    return SearchAxis(LAYOUT, (*fixed, *elastic), lambda own, stride: dict(_near_layouts(own, total, learns)))


def _near_layouts(spec: ExperimentSpec, total: int, learns: Mapping[str, float]) -> Iterator[tuple[str, Any]]:
    """List what is one device away: of the engines, of a policy, or of another one."""
    names, training = sorted(learns), spec.resources.training_devices
    now = [spec.policies[name].devices for name in names]
    if spec.mechanisms.allocation.type == "colocated":
        return
    if all(own.least == own.most for own in now) and sum(own.most for own in now) == training:
        yield from _near_gangs({name: own.most for name, own in zip(names, now, strict=True)}, total)
        return
    most = max(own.most for own in now)
    for part, called in ((training - 1, "fewer"), (training + 1, "more")):
        if 0 < part < total:
            yield called, _elastic(total, part, names, min(most, part))
    for other, called in ((most // 2, "narrower"), (most * 2, "wider")):
        if 0 < other <= training:
            yield called, _elastic(total, training, names, other)
    if training >= len(names):
        yield "by work", _fixed(total, by_work(training, learns))


def _near_gangs(gangs: Mapping[str, int], total: int) -> Iterator[tuple[str, Any]]:
    for name, many in gangs.items():
        if sum(gangs.values()) + 1 < total:
            yield f"{name} from engines", _fixed(total, {**gangs, name: many + 1})
        if many > 1:
            yield f"engines from {name}", _fixed(total, {**gangs, name: many - 1})
            for other, more in gangs.items():
                if other != name:
                    yield f"{other} from {name}", _fixed(total, {**gangs, name: many - 1, other: more + 1})


def _fixed(total: int, gangs: Mapping[str, int]) -> dict[str, Any]:
    return _gangs(total - sum(gangs.values()), sum(gangs.values()), gangs)


def _gangs(engines: int, training: int, gangs: Mapping[str, int]) -> dict[str, Any]:
    own = {name: {"devices": {"least": many, "most": many}} for name, many in gangs.items()}
    return {"resources": {"rollout_devices": engines, "training_devices": training}, "policies": own}


def _elastic(total: int, training: int, names: list[str], most: int) -> dict[str, Any]:
    own = {name: {"devices": {"least": 1, "most": most}} for name in names}
    return {"resources": {"rollout_devices": total - training, "training_devices": training}, "policies": own}


def _choice(path: str, values: Values) -> SearchAxis:
    """Make an axis of values that have no order: each is one step away."""
    return SearchAxis(path, values, lambda spec, stride: {str(value): value for value in values})


def _amount(path: str, values: Values, least: float, most: float, *, unlimited: int | None = None) -> SearchAxis:
    """Make an axis of numbers. `unlimited` is what None comes to, where that is a value."""
    read, whole = attrgetter(path), isinstance(values[0], int)

    def near(spec: ExperimentSpec, stride: float) -> Steps:
        now = read(spec) or unlimited or least
        less, more = round(now / stride, 2), round(now * stride, 2)
        steps = (min(now - 1, round(less)), max(now + 1, round(more))) if whole else (less, more)
        return {str(step): step for step in steps if least <= step <= most}

    return SearchAxis(path, values, near, ordered=True)
