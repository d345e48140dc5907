"""Devices chosen for a draft: what pools have, how fast they are known to be, what is chosen, and why not more.

Invariant: what is told as chosen, laid over the draft, is a specification that this project may submit.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments.capacity import largest
from flexmarl.controlplane.experiments.forecaster import FORECASTER, ChoiceQuestion, PredictionFailed
from flexmarl.controlplane.experiments.predictions import kind_of
from flexmarl.controlplane.experiments.profiles import profiles_of
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.simulator.choosing.objectives import DeviceChoice, DeviceObjective, DevicePlan, KnownSpeeds, PoolStock
from flexmarl.simulator.choosing.setups import DeviceQuestion, engine_sizes, refusals
from flexmarl.simulator.prediction.splitting import Change
from flexmarl.store.control import pool_rules

Resolves = Callable[[Mapping[str, Any]], bool]
"""Tells whether a draft with more laid over it is a legal specification."""


def choose(
    spec: ExperimentSpec, project: str, wish: DeviceObjective, only: Sequence[str], free: bool, resolves: Resolves
) -> dict[str, Any]:
    """Choose devices of pools for a run: of all that a project may use or of some, of free ones or of all.

    Raises ValidationProblem where nothing can be chosen, with the field, the rule, and what can be had; PredictionSlow.
    """
    if impossible := refusals(DeviceQuestion(spec, wish, (), ())):
        raise _refused(*((one.pointer, one.code, one.detail, one.hint) for one in impossible))
    stock, left_out = _stock(project, only, free, wish, spec)
    known = list(profiles_of(spec, _wanted(spec, stock)))
    asked = ChoiceQuestion(
        spec=spec,
        wish=wish,
        stock=tuple(stock),
        known=tuple(known),
        left_out=tuple(left_out),
        unmeasured=tuple(_unmeasured(known)),
    )
    try:
        made = FORECASTER.choose(asked)
    except PredictionFailed as failed:
        raise _refused(("/choose", "prediction_failed", str(failed), "Plan without choose.")) from failed
    return _told(made, wish, resolves)


def _stock(
    project: str, only: Sequence[str], free: bool, wish: DeviceObjective, spec: ExperimentSpec
) -> tuple[list[PoolStock], list[str]]:
    """Return the pools to choose from, and why others are not among them. Raises ValidationProblem for none."""
    found, rules = inventory.devices(), pool_rules.rules(store_connection())
    rows = {row["name"]: row for row in inventory.pools(found, rules) if inventory.may_use(project, row["name"])}
    for index, name in enumerate(only):
        if name not in rows:
            detail, hint = f"There is no pool {name} that this project may use.", f"Pools: {', '.join(sorted(rows))}."
            raise _refused((f"/choose/pools/{index}", "unknown_pool", detail, hint))
    stock, left_out, unpriced = list[PoolStock](), list[str](), list[str]()
    for name in only or sorted(rows):
        own = [one for one in found if one["pool"] == name and (one["free"] if free else _works(one))]
        quota = [q.devices for q in rules.quotas if (q.project, q.pool) == (project, name)]
        hosts = _hosts(name, own, free)
        row, count = rows[name], min([sum(hosts), *quota])
        offered = inventory.engines_of(name)
        if not count:
            left_out.append(f"{name}: no {'free' if free else 'working'} device for this project.")
        elif wish.needs_prices and row["device_hour_price"] is None:
            unpriced.append(name)
        elif offered is not None and spec.resources.engine not in offered:
            left_out.append(f"{name}: no node has the engine {spec.resources.engine}.")
        else:
            kind, room = kind_of(found, name), largest(found, name)
            stock.append(
                PoolStock(
                    name=name,
                    kind=kind,
                    hosts=hosts,
                    devices=count,
                    price=row["device_hour_price"],
                    preemptible=row["preemptible"],
                    memory_bytes=room,
                )
            )
    left_out += [f"{name}: no price of a device hour." for name in unpriced]
    if not stock:
        raise _no_pool(unpriced, left_out, wish)
    return stock, left_out


def _no_pool(unpriced: Sequence[str], left_out: Sequence[str], wish: DeviceObjective) -> ValidationProblem:
    if unpriced:
        given = [name for name in ("budget", "budget_per_hour", "budget_per_step") if getattr(wish, name) is not None]
        where = given[0] if given else "objective"
        detail = f"No price of a device hour is known for {', '.join(unpriced)}, so nothing can be compared by cost."
        hint = "Set device_hour_price of these pools, or use objective: fastest without a budget."
        return _refused((f"/choose/{where}", "no_price", detail, hint))
    hint = "Choose among all devices (free: false), or add nodes to a pool."
    return _refused(("/choose/pools", "no_devices", " ".join(left_out), hint))


def _works(device: Mapping[str, Any]) -> bool:
    return bool(device["state"] == "ready" and device["node_state"] == "ready")


def _hosts(pool: str, own: Sequence[Mapping[str, Any]], free: bool) -> tuple[int, ...]:
    """Return the devices of each host: those there are, or those that a provider may bring where these are more."""
    there = tuple(sorted(Counter(one["node"] for one in own).values(), reverse=True))
    hosts, each = inventory.growth(pool)
    return (each,) * hosts if not free and hosts * each > sum(there) else there


def _wanted(spec: ExperimentSpec, stock: Sequence[PoolStock]) -> Iterator[tuple[str, int, str]]:
    """List what must be known: engines of each size that a kind of device can have, with trainers of each kind."""
    kinds = dict.fromkeys(pool.kind for pool in stock)
    for kind in kinds:
        for each in engine_sizes(spec, [pool for pool in stock if pool.kind == kind]):
            yield from ((kind, each, trainer) for trainer in kinds)


def _unmeasured(known: Sequence[KnownSpeeds]) -> Iterator[str]:
    """List the kinds of devices of which nothing is known."""
    parts = {"engine.token ": ("engine", "engines"), "trainer.token ": ("trainer", "trainers")}
    seen = set()
    for one in known:
        for name, (member, word) in parts.items():
            figures = [f for n, f in one.profile.figures.items() if n.startswith(name)]
            kind = getattr(one, member)
            if all(f.source == "default" for f in figures) and (kind, word) not in seen:
                seen.add((kind, word))
                yield f"{word} on {kind}: not measured, taken as fast as on any other device."


def _told(made: DeviceChoice, wish: DeviceObjective, resolves: Resolves) -> dict[str, Any]:
    """Return a choice as the API tells it: the best plan that may be submitted. Raises ValidationProblem."""
    if made.out_of_reach is not None:
        reach = made.out_of_reach
        legal = "at most" if reach.limit == "steps_per_hour" else "at least"
        hint = f"Set {legal} {_legal(reach.best, down=reach.limit == 'steps_per_hour')}, or drop another limit."
        raise _refused((f"/choose/{reach.limit}", "out_of_reach", reach.text, hint))
    plans = [one for one in (made.best, *made.others) if one is not None and resolves(patch_of(one.changes))]
    if not plans:
        detail = "No pool has devices that can hold this run under the rules of its specification."
        left_out = " ".join(made.left_out)
        raise _refused(("/choose/pools", "no_devices", f"{detail} {left_out}".strip(), "Add a pool, or allow others."))
    rows = [_row(one) for one in plans]
    return {
        "objective": wish.objective,
        "best": rows[0],
        "others": rows[1:],
        "asked": None if made.asked is None else _row(made.asked),
        **made.model_dump(mode="json", include={"looked_at", "simulated", "stopped", "left_out", "unmeasured"}),
    }


def patch_of(changes: Iterable[Change]) -> dict[str, Any]:
    """Return what is laid over a specification for some changes."""
    patch: dict[str, Any] = {}
    for change in changes:
        *path, name = change.pointer.strip("/").split("/")
        here = patch
        for part in path:
            here = here.setdefault(part, {})
        here[name] = change.value
    return patch


def _row(plan: DevicePlan) -> dict[str, Any]:
    cost = plan.cost
    return {
        **_rounded(plan.model_dump(mode="json", exclude={"changes", "cost"})),
        "cost_per_hour": None if cost is None else round(cost.per_hour, 6),
        "cost_per_step": None if cost is None else _rounded(cost.per_step.model_dump()),
        "cost": None if cost is None else _rounded(cost.whole.model_dump()),
        "changes": [one.model_dump(mode="json") for one in plan.changes],
        "patch": patch_of(plan.changes),
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, 6) if isinstance(value, float) else value


def _legal(best: float, *, down: bool) -> str:
    """Return a round number that is a little easier than the best there is."""
    eased = best * (0.98 if down else 1.02)
    return f"{eased:.4g}"


def _refused(*errors: tuple[str, str, str, str]) -> ValidationProblem:
    found = [FieldError(*one) for one in errors]
    return ValidationProblem(f"No devices are chosen: {found[0].detail}", errors=found)
