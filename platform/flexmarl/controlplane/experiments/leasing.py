"""What memory a run leases with each device: what a plan counts, before anything of it was measured."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil

from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.prediction import memory
from flexmarl.simulator.prediction.memory_loads import asked_of
from flexmarl.simulator.prediction.profile import Profile


@lru_cache(maxsize=512)
def needed(spec: str, shares: bool) -> Mapping[DeviceUse, int]:
    """Return the bytes that one device of a use needs, as is likely; a use of unknown models is left out.

    Policies are taken to be spread evenly over the devices of a use, the largest together. `shares`: trainers take
    turns with engines, so an engine's device has room for either.
    """
    own = ExperimentSpec.model_validate_json(spec)
    sizes, asked = memory.parameters_of(own, {}), asked_of(own, Profile(figures={}))
    uses = {
        DeviceUse.ENGINE: (memory.engine, tuple(own.policies), own.resources.engines),
        DeviceUse.TRAINER: (memory.trainer, own.trainable_policies(), own.resources.training_devices),
    }
    found = {}
    for use, (holds, policies, devices) in uses.items():
        together = _largest(policies, sizes, ceil(len(policies) / max(1, devices)))
        lies = holds(own, together, sizes, asked)
        if lies.parts:
            found[use] = round(lies.total("likely"))
    if shares and found:
        found[DeviceUse.ENGINE] = max(found.values())
    return found


def _largest(policies: Sequence[str], sizes: Mapping[str, int], count: int) -> list[str]:
    """Return so many policies, those of unknown size first."""
    return sorted(policies, key=lambda name: -sizes.get(name, 2**63))[:count]
