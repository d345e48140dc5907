"""What compares the tokens of a whole micro-batch, and is refused where no trainer rank sees them all."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flexmarl.contracts.problems import Problem

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


def parted(spec: "ExperimentSpec", pointer: str, name: str, neutral: str) -> Iterator[Problem]:
    """Refuse trainer ranks that see parts of a micro-batch; `neutral` is the value that compares nothing."""
    shared = [policy for policy in spec.trainable_policies() if spec.policies[policy].devices.most > 1]
    if shared:
        yield Problem(
            pointer=pointer,
            code="not_with_ranks",
            detail=f"{name} compares the tokens of a whole micro-batch, and each of the "
            f"{spec.policies[shared[0]].devices.most} trainer ranks of {shared[0]} sees a part of it.",
            hint=f"Set {neutral}, or 1 in /policies/{shared[0]}/devices.",
        )
