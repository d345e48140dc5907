"""Which policies fit no device of their pools, whatever else lies there.

Invariant: what is refused cannot be held: counted is what a policy takes at the least, against the most that a device
of the pool can give, which of a CPU share is the memory of its host. A policy of unknown size and a pool of unknown
memory are let pass.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.simulator.prediction import memory
from flexmarl.simulator.prediction.memory_loads import LEAST


def too_large(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return a refusal for each policy that the largest device of its pool cannot hold, with both figures."""
    found, sizes = inventory.devices(), memory.parameters_of(spec, {})
    resources = spec.resources
    training = resources.training_pool if spec.own_trainers else resources.rollout_pool
    uses = (
        (memory.trainer, training, spec.trainable_policies(), 1),
        (memory.engine, resources.rollout_pool, spec.policies, resources.engine_devices),
    )
    refused = set()
    for holds, pool, policies, each in uses:
        capacity = largest(found, pool, each)
        for name in policies:
            held = holds(spec, [name], sizes, {name: LEAST})
            if name not in refused and 0 < capacity < held.total("low"):
                refused.add(name)
                yield Problem(
                    pointer=f"/policies/{name}/model",
                    code="memory_short",
                    detail=f"The {held.use} of {name} needs at least {_gib(held.total('low'))}; the largest device of "
                    f"{pool} has {_gib(capacity)}.",
                    hint="Use a smaller model, bf16, tuning: {type: lora}, or a pool of larger devices.",
                )


def largest(found: Sequence[Mapping[str, Any]], pool: str, each: int = 1) -> int:
    """Return the most memory that a device of a pool can give to one of `each` devices of a host that work together; 0
    where that is not known."""
    hosts: Counter[str] = Counter()
    most = 0
    for device in found:
        if device["kind"] == "cpu":
            hosts[device["node"]] += int(device["memory_bytes"])
        elif device["pool"] == pool:
            most = max(most, int(device["memory_bytes"]))
    shares = (hosts[one["node"]] // each for one in found if one["pool"] == pool and one["kind"] == "cpu")
    return max(most, *shares, 0) if found else 0


def _gib(count: float) -> str:
    return f"{count / 2**30:.2f} GiB"
