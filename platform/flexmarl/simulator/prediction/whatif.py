"""What one changed setting would have done for a run: its record played again as it was, and with the change.

A gain is time per trained token: episodes of a step differ from change to change, tokens do not. Its lower end takes
what the replay does not explain of the actual time as what no change shortens, and what it takes beyond the actual time
as a part of what the change seems to save; its upper end trusts the replay.
Nothing is learned here: what older rows or other rows do to rewards is named as a cost and not predicted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from flexmarl.contracts.problems import Problem, problems_of
from flexmarl.contracts.resolve import layered
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.routers import ROUTER
from flexmarl.simulator.reporting.report import CAUSES, EXPLAINED, USES, Cause, Report, Use

AS_IT_WAS = "as it was"
WORTH = 0.02
"""Least share of time that an advice promises at its lower end."""


@dataclass(frozen=True, slots=True)
class Alternative:
    name: str
    changes: Mapping[str, Any]
    """Dotted path of the specification -> value."""
    semantics: str = ""
    """What it changes besides time; empty: nothing."""


OLDER = "rows may be one version older than the weights they train: no longer strictly on-policy"
WAVE = "still on-policy; a turn may wait for its own policy's new weights"
DELAYED = "rows are made by the weights of one step before"
SEVERAL = "several optimizer steps per cohort: the rows of later ones are older than the weights"
FIRST = "the first to finish count: short episodes are trained more often than long ones"
DEVICES = "needs other devices than the run had"


def alternatives(spec: ExperimentSpec) -> list[Alternative]:
    """List the changes of one setting that may shorten a run, legal or not."""
    own, batch, resources = spec.mechanisms, spec.batch, spec.resources
    found = [
        Alternative(f"trainer_protocol {value}", {"mechanisms.trainer_protocol": value}, words)
        for value, words in (("micro_batch", ""), ("batch", ""), ("per_group", ""), ("mini_batch", SEVERAL))
        if value != own.trainer_protocol
    ]
    found += [
        Alternative(f"publication {value}", {"mechanisms.publication.type": value}, words)
        for value, words in (("cohort", ""), ("wavefront", WAVE), ("delayed", DELAYED))
        if value != own.publication.type
    ]
    bound = own.lag_policy.bound
    found.append(Alternative(f"lag bound {bound + 1}", {"mechanisms.lag_policy.bound": bound + 1}, OLDER))
    if bound:
        found.append(Alternative("lag bound 0", {"mechanisms.lag_policy.bound": 0}))
    groups = batch.micro_batch_groups
    sizes = {max(1, groups // 2), groups * 2} - {groups}
    found += [Alternative(f"micro_batch_groups {size}", {"batch.micro_batch_groups": size}) for size in sorted(sizes)]
    for field in ("rollout_devices", "training_devices"):
        count = getattr(resources, field)
        counts = {max(1, count // 2), count * 2} - {count}
        found += [Alternative(f"{field} {many}", {f"resources.{field}": many}, DEVICES) for many in sorted(counts)]
    return found + _redundant(spec) + _placed(spec)


def _redundant(spec: ExperimentSpec) -> list[Alternative]:
    if spec.mechanisms.redundancy.type != "none":
        return [Alternative("no redundancy", {"mechanisms.redundancy.type": "none"})]
    sizes = {
        "extra_members": max(1, spec.batch.episodes_per_task // 4),
        "extra_groups": max(1, spec.batch.tasks_per_step // 4),
        "extra_environments": 1,
    }
    return [
        Alternative(
            f"redundancy {kind} {extra}",
            {"mechanisms.redundancy.type": kind, "mechanisms.redundancy.extra": extra},
            "" if kind == "extra_environments" else FIRST,
        )
        for kind, extra in sizes.items()
    ]


def _placed(spec: ExperimentSpec) -> list[Alternative]:
    """List who answers a turn and what engines hold, where there is a choice."""
    found = []
    if spec.resources.rollout_devices > 1:
        routers = [name for name in ROUTER.variants() if name != spec.mechanisms.router.type]
        found += [Alternative(f"router {name}", {"mechanisms.router.type": name}) for name in routers]
    if spec.resources.has_places(len(spec.policies)):
        other = "static" if spec.mechanisms.mover.type == "demand" else "demand"
        found.append(Alternative(f"mover {other}", {"mechanisms.mover.type": other}))
    return found


def changed(spec: ExperimentSpec, alternative: Alternative) -> ExperimentSpec | tuple[Problem, ...]:
    """Return the specification with a change, or why it is not legal."""
    document = spec.model_dump(mode="json")
    for path, value in alternative.changes.items():
        made: Any = value
        for name in reversed(path.split(".")):
            made = {name: made}
        document = layered(document, made)
    try:
        made_spec = ExperimentSpec.model_validate(document)
    except ValidationError as error:
        return tuple(problems_of(error, ExperimentSpec.model_json_schema(), document))
    return tuple(broken_rules(made_spec)) or made_spec


def advice(
    alternative: Alternative, base: Sequence[Report], other: Sequence[Report], actual_step_s: float
) -> dict[str, Any]:
    """Compare a change with the replay, seed by seed."""
    gains, careful = [], []
    for was, now in zip(base, other, strict=True):
        gain = 1.0 - was.tokens_s / now.tokens_s
        gains.append(gain)
        careful.append(_careful(gain * was.step_s, was.step_s, actual_step_s or was.step_s))
    least, most = min(*gains, *careful), max(*gains, *careful)
    return {
        "name": alternative.name,
        "changes": dict(alternative.changes),
        "gain": round(fmean((*gains, *careful)), 4),
        "gain_least": round(least, 4),
        "gain_most": round(most, 4),
        "worth": least >= WORTH,
        "why": _why(base, other),
        "costs": _costs(alternative, base, other),
    }


def _careful(saved: float, replay: float, actual: float) -> float:
    """Return what share of the actual time is saved at least, of so many seconds of the replay."""
    if saved <= 0.0:
        return saved / max(actual, replay)
    return max(0.0, saved - max(0.0, replay - actual)) / actual


def _why(base: Sequence[Report], other: Sequence[Report]) -> str:
    """Return which cause of standing still shrinks most, in device seconds a step."""
    shrunk: dict[tuple[Use, Cause], tuple[float, float]] = {}
    for use in USES:
        for cause in CAUSES:
            before = fmean(one.idle[use][cause] * one.step_s for one in base)
            after = fmean(one.idle[use][cause] * one.step_s for one in other)
            shrunk[use, cause] = before, after
    (kind, why), (was, now) = max(shrunk.items(), key=lambda item: item[1][0] - item[1][1])
    if was - now <= 0.001 * fmean(one.step_s for one in base):
        return "nothing that stood still shrinks"
    digits = max(0, 2 - floor(log10(was)))
    return f"{kind}s: {EXPLAINED[why]}, {was:.{digits}f} s a step become {now:.{digits}f} s"


def _costs(alternative: Alternative, base: Sequence[Report], other: Sequence[Report]) -> list[str]:
    found = [alternative.semantics] if alternative.semantics else []
    was, now = (fmean(fmean(one.lag.values()) if one.lag else 0.0 for one in side) for side in (base, other))
    if now > was + 0.005:
        found.append(f"lag grows from {was:.2f} to {now:.2f} versions")
    was, now = (fmean(1.0 - one.trained_share for one in side) for side in (base, other))
    if now > was + 0.005:
        share, before = f"{100 * now:.1f} %", f"{100 * was:.1f} %"
        found.append(f"{share} of the generated tokens are not trained by the end of the replay, from {before}")
    was, now = (fmean(float(one.swaps) for one in side) for side in (base, other))
    if now > was + 0.5:
        found.append(f"{now:.0f} swaps in the window, from {was:.0f}")
    return found


def ranked(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order advice by the predicted gain."""
    return sorted(found, key=lambda one: -float(one["gain"]))
