"""What the chosen rollout engine can serve: one refusal per broken rule, with a legal value."""

from collections.abc import Iterator

from flexmarl.contracts.model_sizes import FACTORY_SIZES
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.team import FactoryModel

VLLM_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of an attention head that vLLM computes on a CPU."""
FACTORY_HEAD_DIMS = {name: size.hidden // size.heads for name, size in FACTORY_SIZES.items()}


def broken_engine_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return what the vLLM engine cannot serve of a specification; the torch engine serves all of it."""
    if spec.resources.engine != "vllm":
        return
    yield from _models(spec)
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
