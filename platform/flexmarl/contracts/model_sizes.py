"""Sizes of the models that the project makes itself, and what an adapter of them holds."""

from dataclasses import dataclass

from flexmarl.contracts.specification.team import FactoryModel, Lora, PolicySpec


@dataclass(frozen=True, slots=True)
class FactorySize:
    hidden: int
    layers: int
    mlp: int
    heads: int
    init_std: float
    """About 1/sqrt(hidden): with the usual 0.02 a tiny random policy stays at chance."""

    def sides(self, target: str) -> tuple[int, int]:
        """Return outputs and inputs of an adapted matrix."""
        if target in ("gate_proj", "up_proj"):
            return self.mlp, self.hidden
        return self.hidden, self.mlp if target == "down_proj" else self.hidden


FACTORY_SIZES = {
    "S": FactorySize(hidden=64, layers=2, mlp=128, heads=4, init_std=0.15),
    "M": FactorySize(hidden=128, layers=2, mlp=256, heads=4, init_std=0.09),
}


def adapter_parameters(policy: PolicySpec) -> int | None:
    """Count what a policy's adapter trains. None: it has none, or its model is known only where it is read."""
    if not isinstance(policy.tuning, Lora) or not isinstance(policy.source, FactoryModel):
        return None
    size = FACTORY_SIZES[policy.source.size]
    return size.layers * policy.tuning.rank * sum(sum(size.sides(target)) for target in policy.tuning.targets)
