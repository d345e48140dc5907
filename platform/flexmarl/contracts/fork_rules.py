"""What a run may change that begins with another run's weights: whatever does not change what the weights are."""

from collections.abc import Collection, Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.team import FactoryModel, Lora, PackageModel, PolicySpec, RegisteredModel

INCOMPATIBLE = "incompatible"


def fork_rules(
    parent: ExperimentSpec, spec: ExperimentSpec, taken: Collection[str], training_state: bool
) -> Iterator[Problem]:
    """Return what keeps the policies named from going on with the parent's weights, or with its optimizer's state."""
    for policy in sorted(taken):
        was, now = parent.policies[policy], spec.policies[policy]
        yield from _model(policy, was, now)
        yield from _tuning(policy, was, now)
        if training_state and was.precision != now.precision:
            yield _differs(
                f"/policies/{policy}/precision", now.precision, was.precision, "the training state was kept in"
            )
    words = any(isinstance(parent.policies[policy].source, FactoryModel) for policy in taken)
    if words and parent.environment.type != spec.environment.type:
        yield _differs("/environment/type", spec.environment.type, parent.environment.type, "the models were made for")


def _model(policy: str, was: PolicySpec, now: PolicySpec) -> Iterator[Problem]:
    where, why, old, new = f"/policies/{policy}/model", "the weights are of a model of", was.source, now.model
    if old.type != new.type:
        yield _differs(f"{where}/type", new.type, old.type, why)
    elif isinstance(old, FactoryModel) and isinstance(new, FactoryModel) and old.size != new.size:
        yield _differs(f"{where}/size", new.size, old.size, why)
    elif isinstance(old, FactoryModel) and isinstance(new, FactoryModel) and old.decoding != new.decoding:
        yield _differs(f"{where}/decoding", new.decoding, old.decoding, why)
    elif isinstance(old, PackageModel) and isinstance(new, PackageModel) and old.name != new.name:
        yield _differs(f"{where}/name", new.name, old.name, why)
    elif isinstance(old, RegisteredModel) and isinstance(new, RegisteredModel) and old.digest != new.digest:
        yield _differs(f"{where}/name", new.label, old.label, why)


def _tuning(policy: str, was: PolicySpec, now: PolicySpec) -> Iterator[Problem]:
    where = f"/policies/{policy}/tuning"
    if was.tuning.type != now.tuning.type:
        yield _differs(f"{where}/type", now.tuning.type, was.tuning.type, "the published weights are of")
        return
    if not (isinstance(was.tuning, Lora) and isinstance(now.tuning, Lora)):
        return
    for field in ("rank", "alpha", "targets"):
        old, new = getattr(was.tuning, field), getattr(now.tuning, field)
        if (set(old) != set(new)) if field == "targets" else old != new:
            yield _differs(f"{where}/{field}", _said(new), _said(old), "the adapter has")


def _said(value: object) -> str:
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)


def _differs(where: str, now: object, was: object, why: str) -> Problem:
    field = where.rpartition("/")[2]
    return Problem(
        pointer=where,
        code=INCOMPATIBLE,
        detail=f"{field} is {now}; {why} {was}, and a run that starts from them must keep it.",
        hint=f"Set {was}, or start a new run.",
    )
