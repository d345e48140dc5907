"""What the chosen rollout engine can serve: one refusal per broken rule, with a legal value."""

from collections.abc import Iterator

from flexmarl.contracts.model_sizes import FACTORY_SIZES, shape_of
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.resources import MOST_ENGINE_DEVICES, MOST_ROLLOUT_DEVICES
from flexmarl.contracts.specification.team import FactoryModel

VLLM_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of an attention head that vLLM computes on a CPU."""
FACTORY_HEAD_DIMS = {name: size.hidden // size.heads for name, size in FACTORY_SIZES.items()}


def broken_engine_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what the chosen engine cannot serve of a specification; torch serves all of it, on one device."""
    yield from _devices(spec)
    yield from _scaling(spec)
    if spec.resources.engine != "vllm":
        return
    yield from _models(spec)
    yield from _splits(spec)
    if spec.mechanisms.ordered:
        yield Problem(
            pointer="/mechanisms/ordered",
            code="not_with_engine",
            detail="Ordered runs are bitwise reproducible; vLLM's results depend on the rest of its batch.",
            hint="Set ordered: false, or resources: {engine: torch}.",
        )
    for name in spec.trainable_policies():
        if spec.lag_policy_of(name).in_flight == "continue":
            own = spec.policies[name].lag_policy is not None
            where = f"/policies/{name}/lag_policy" if own else "/mechanisms/lag_policy"
            yield Problem(
                pointer=f"{where}/in_flight",
                code="not_with_engine",
                detail=f"vLLM keeps a KV cache per version; replies of {name} cannot continue with that of an older "
                "version.",
                hint="Set resume, or resources: {engine: torch}.",
            )


def _models(spec: ExperimentSpec) -> Iterator[Problem]:
    for name, policy in spec.policies.items():
        if not isinstance(policy.source, FactoryModel):
            continue  # what a folder holds is known where it is read: an engine that cannot serve it says so
        size = FACTORY_HEAD_DIMS[policy.source.size]
        if size not in VLLM_HEAD_DIMS:
            fits = ", ".join(name for name, width in FACTORY_HEAD_DIMS.items() if width in VLLM_HEAD_DIMS)
            yield Problem(
                pointer=f"/policies/{name}/model/size",
                code="not_with_engine",
                detail=f"vLLM supports attention heads of {', '.join(map(str, VLLM_HEAD_DIMS))}; those of size "
                f"{policy.source.size} are {size} wide.",
                hint=f"Set {fits}, or resources: {{engine: torch}}.",
            )


def _devices(spec: ExperimentSpec) -> Iterator[Problem]:
    """Engines are whole, and only vLLM splits a model over several devices."""
    devices, asked = spec.resources.engine_devices, spec.resources.rollout_devices
    named = {"": asked} if isinstance(asked, int) else {"/min": asked.min, "/max": asked.max}
    if devices == 1:
        return
    if spec.resources.engine != "vllm":
        yield Problem(
            pointer="/resources/engine_devices",
            code="not_with_engine",
            detail=f"The {spec.resources.engine} engine computes on one device; only vLLM splits a model over several.",
            hint="Set 1, or engine: vllm.",
        )
    for where, count in named.items():
        if not count % devices:
            continue
        below, above = count - count % devices, count + devices - count % devices
        legal = [many for many in (below, above) if 0 < many <= MOST_ROLLOUT_DEVICES]
        yield Problem(
            pointer=f"/resources/rollout_devices{where}",
            code="not_whole_engines",
            detail=f"Engines of {devices} devices use a multiple of {devices}; {count} is none.",
            hint=f"Set {numbers(legal)}, or engine_devices: 1.",
        )


def _scaling(spec: ExperimentSpec) -> Iterator[Problem]:
    """A fleet that follows measured rates has two sizes to go between."""
    resources, least = spec.resources, spec.resources.least_rollout_devices
    if spec.mechanisms.scaling.type == "dead_band" and not resources.elastic:
        yield Problem(
            pointer="/mechanisms/scaling/type",
            code="needs_range",
            detail=f"dead_band changes the number of engines; rollout_devices is fixed at {least}.",
            hint=f"Set free, or rollout_devices: {{min: {resources.engine_devices}, "
            f"max: {max(least, 2 * resources.engine_devices)}}} in /resources.",
        )


def _splits(spec: ExperimentSpec) -> Iterator[Problem]:
    """Ranks of an engine have equal parts of every layer."""
    devices = spec.resources.engine_devices
    for name, policy in spec.policies.items():
        shape = shape_of(policy.source)
        if shape is None:
            continue  # what a folder holds is known where it is read: an engine that cannot split it says so
        if uneven := uneven_parts(shape.heads, shape.kv_heads, shape.mlp, devices):
            yield Problem(
                pointer="/resources/engine_devices",
                code="not_divisible",
                detail=f"The model of {name} ({policy.source.label}) has {uneven}: not divisible among {devices} "
                "devices.",
                hint=f"Set {numbers(divisors(shape.heads, shape.kv_heads, shape.mlp))}.",
            )


def uneven_parts(heads: int, kv_heads: int, mlp: int, devices: int) -> str:
    """Say what of a layer cannot be split among devices; empty when all can. Fewer key-value heads than devices are
    copied, as many times to each."""
    found = []
    if heads % devices:
        found.append(f"{heads} attention heads")
    if kv_heads % devices and devices % kv_heads:
        found.append(f"{kv_heads} key-value heads")
    if mlp % devices:
        found.append(f"an MLP {mlp} wide")
    return " and ".join(found)


def divisors(heads: int, kv_heads: int, mlp: int) -> list[int]:
    """List the numbers of devices that a model can be split over."""
    return [n for n in range(1, MOST_ENGINE_DEVICES + 1) if not uneven_parts(heads, kv_heads, mlp, n)]


def numbers(legal: list[int]) -> str:
    """Name the values that may be set."""
    *others, last = map(str, legal)
    return f"{', '.join(others)} or {last}" if others else last
