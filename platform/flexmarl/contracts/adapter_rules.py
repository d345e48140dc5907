"""Which adapters fit their models: one refusal per broken rule, with a legal value."""

from collections.abc import Iterator

from flexmarl.contracts.model_sizes import FACTORY_SIZES
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.team import FactoryModel, Lora


def adapter_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return every broken rule of the policies' adapters. What a folder's model allows is known where it is read."""
    for name, policy in spec.policies.items():
        if not isinstance(policy.tuning, Lora):
            continue
        lora, where = policy.tuning, f"/policies/{name}/tuning"
        if len(set(lora.targets)) < len(lora.targets):
            yield Problem(
                pointer=f"{where}/targets",
                code="duplicate",
                detail="targets contains a matrix twice; each matrix has one adapter.",
                hint=f"Set {', '.join(dict.fromkeys(lora.targets))}.",
            )
        if isinstance(policy.source, FactoryModel):
            size = FACTORY_SIZES[policy.source.size]
            most = min(min(size.sides(target)) for target in lora.targets)
            if lora.rank > most:
                yield Problem(
                    pointer=f"{where}/rank",
                    code="out_of_range",
                    detail=f"The smallest side of an adapted matrix of size {policy.source.size} is {most}; an adapter "
                    f"of rank {lora.rank} would be larger than the matrix.",
                    hint=f"Set {max(1, most // 8)}, or type: full.",
                )
