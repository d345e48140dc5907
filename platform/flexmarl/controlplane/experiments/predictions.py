"""A plan's prediction: what is known, simulated, and what it means in devices, memory, hours and cost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.experiments.forecaster import FORECASTER
from flexmarl.controlplane.experiments.models import StoredPlan
from flexmarl.controlplane.experiments.profiles import profile_of
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.simulator.prediction.memory import PARTS, DeviceMemory
from flexmarl.simulator.prediction.predicting import Prediction, Range, causes, shown
from flexmarl.simulator.prediction.profile import Profile
from flexmarl.simulator.prediction.splitting import WORTH, SplitAdvice

HOUR_S = 3600.0
SEEN = 0.0005
"""Causes of a smaller share are left out."""
ENDS = ("low", "likely", "high")


def predict(spec: ExperimentSpec, project: str) -> StoredPlan:
    """Predict a run and keep what was said. Raises PredictionSlow, PredictionFailed."""
    profile, found = known(spec), inventory.devices()
    made = FORECASTER.predict(spec, profile)
    pools = {"engine": spec.resources.rollout_pool, "trainer": spec.resources.training_pool}
    if not spec.own_trainers:
        pools["trainer"] = pools["engine"]
    rooms = {use: room(found, pool) for use, pool in pools.items()}
    body = {
        "step_s": _range(made.step_s),
        "tokens_s": _range(made.tokens_s),
        "utilisation": {"engine": _range(made.engine_busy), "trainer": _range(made.trainer_busy)},
        "bubble": {use: _bubble(of) for use, of in made.bubble.items()},
        "hours": _range(made.seconds, HOUR_S),
        "device_hours": _range(made.device_seconds, HOUR_S),
        "cost": cost(spec, made, pools),
        "devices": [
            {
                "no": one.no,
                "use": one.use,
                "devices": one.devices,
                "pool": pools[one.use],
                "policies": list(one.policies),
                "memory": lies,
            }
            for one, memory in zip(made.devices, made.memory, strict=True)
            for lies in [_memory(memory, rooms[one.use])]
        ],
        "why": list(made.why),
        "figures": list(shown(profile)),
        "steps": made.steps,
        "simulations": made.simulations,
        "split": _split(made.split),
    }
    figures = {name: figure.model_dump(include=set(ENDS)) for name, figure in profile.figures.items()}
    return StoredPlan.objects.create(project=project, prediction=body, figures=figures)


def known(spec: ExperimentSpec) -> Profile:
    """Return what is known of an experiment on the devices of its pools."""
    found = inventory.devices()
    wanted = {"engine": spec.resources.rollout_pool, "trainer": spec.resources.training_pool}
    return profile_of(spec, {use: kind_of(found, pool) for use, pool in wanted.items()})


def plan_row(plan: StoredPlan) -> dict[str, Any]:
    """Return a prediction as the API tells it."""
    return {"id": str(plan.id), "made_at": rfc3339(plan.made_at), **plan.prediction}


def moved(plan: StoredPlan, profile: Profile) -> list[tuple[str, Any, Any]]:
    """List the figures that are now likely to lie where a plan did not expect them: what, before, after."""
    return [
        (f"profile {name}", before["likely"], now.likely)
        for name, before in sorted(plan.figures.items())
        if (now := profile.figures.get(name)) and not before["low"] <= now.likely <= before["high"]
    ]


def warnings(plan: StoredPlan) -> list[Problem]:
    """Warn of devices whose memory is too small for what would lie there."""
    found = []
    for device in plan.prediction["devices"]:
        memory = device["memory"]
        if memory and memory["fits"] in ("no", "maybe"):
            member = "rollout_devices" if device["use"] == "engine" else "training_devices"
            sure = "needs" if memory["fits"] == "no" else "may need"
            detail = (
                f"An {device['use']} of {', '.join(device['policies'])} {sure} {_gib(memory['total']['high'])}; a "
                f"device of {device['pool']} has {_gib(memory['capacity'])}."
            ).replace("An trainer", "A trainer")
            hint = "Use fewer policies per device, a smaller model, bf16, or a pool of larger devices."
            found.append(Problem(pointer=f"/resources/{member}", code="memory_short", detail=detail, hint=hint))
    return found[:2]


def kind_of(found: Sequence[Mapping[str, Any]], pool: str) -> str:
    """Name the kind of device that most of a pool are; CPU shares where it has none."""
    kinds = Counter(f"{device['kind']} {device['name']}" for device in found if device["pool"] == pool)
    return kinds.most_common(1)[0][0] if kinds else "cpu"


def room(found: Sequence[Mapping[str, Any]], pool: str) -> int:
    """Return the memory of a pool's smallest device; 0 where that is not known."""
    return min((int(device["memory_bytes"]) for device in found if device["pool"] == pool), default=0)


def cost(spec: ExperimentSpec, made: Prediction, pools: Mapping[str, str]) -> dict[str, float] | None:
    """Return what the devices cost until the end; None unless every pool has a price."""
    prices = inventory.prices(pools.values())
    if not set(pools.values()) <= set(prices):
        return None
    per_hour = spec.resources.most_rollout_devices * prices[pools["engine"]]
    per_hour += spec.own_trainers * prices[pools["trainer"]]
    return {end: round(value * per_hour, 4) for end, value in _range(made.seconds, HOUR_S).items()}


def _range(found: Range, unit: float = 1.0) -> dict[str, float]:
    return {end: round(getattr(found, end) / unit, 6) for end in ENDS}


def _bubble(of: Mapping[str, Range]) -> list[dict[str, Any]]:
    meaning = causes()
    told = sorted(((cause, share) for cause, share in of.items() if share.high >= SEEN), key=lambda row: -row[1].likely)
    return [{"cause": cause, "text": meaning[cause], **_range(share)} for cause, share in told]


def _memory(memory: DeviceMemory, capacity: int) -> dict[str, Any] | None:
    if not memory.parts:
        return None
    total = {end: round(memory.total(end)) for end in ENDS}
    fits = "unknown" if not capacity else "no" if total["low"] > capacity else "maybe"
    return {
        "parts": [
            {"name": part.name, "text": PARTS[part.name], **{end: round(getattr(part, end)) for end in ENDS}}
            for part in memory.parts
        ],
        "total": total,
        "capacity": capacity or None,
        "fits": "yes" if capacity and total["high"] <= capacity else fits,
    }


def _split(advice: SplitAdvice) -> dict[str, Any]:
    better = advice.better
    told = None if better is None else better.model_dump(mode="json") | {
        "step_s": _ends(better.step_s), "gain": _ends(better.gain),
    }  # fmt: skip
    short = advice.model_dump(include={"devices", "looked_at", "stopped"})
    return {**short, "least_gain": WORTH, "better": told}


def _ends(values: Sequence[float]) -> dict[str, float]:
    return {end: round(value, 6) for end, value in zip(ENDS, values, strict=True)}


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
