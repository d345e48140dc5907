"""Which pools, devices of an engine and lag bounds a run may have, and what a step takes there.

Left out is what rules of the specification refuse, what does not fit the memory of a pool's devices, and, for training,
pools whose hosts may be taken away.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.choosing.closed_form import StepWork, step_work
from flexmarl.simulator.choosing.objectives import MOST_LAG, DeviceObjective, KnownSpeeds, PoolStock
from flexmarl.simulator.choosing.table import DeviceSetup, SpeedKey
from flexmarl.simulator.prediction import memory
from flexmarl.simulator.prediction.fitting import machine
from flexmarl.simulator.prediction.memory_loads import LEAST
from flexmarl.simulator.prediction.predicting import workload
from flexmarl.simulator.prediction.profile import Ends
from flexmarl.simulator.prediction.whatif import Alternative, changed
from flexmarl.simulator.scenarios.scenario import Scenario

SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Devices of an engine that are looked at."""


@dataclass(frozen=True)
class DeviceQuestion:
    """A run, what is wanted, what there is, and how fast it is known to be."""

    spec: ExperimentSpec
    wish: DeviceObjective
    stock: tuple[PoolStock, ...]
    known: tuple[KnownSpeeds, ...]

    @cached_property
    def own_bound(self) -> int:
        """Return the highest lag bound of a trained policy."""
        return max((self.spec.lag_policy_of(name).bound for name in self.spec.trainable_policies()), default=0)

    @property
    def shared(self) -> bool:
        """Tell whether trainers share the devices of engines."""
        return self.spec.mechanisms.allocation.type == "colocated"

    def speeds(self, key: SpeedKey) -> KnownSpeeds:
        """Return how fast engines and trainers of two kinds are."""
        return next(o for o in self.known if (o.engine, o.each, o.trainer) == (key.engine, key.each, key.trainer))

    def knows(self, key: SpeedKey) -> bool:
        """Tell whether anything is known of engines and trainers of two kinds; of others nothing is chosen."""
        return any((o.engine, o.each, o.trainer) == (key.engine, key.each, key.trainer) for o in self.known)

    def paths(self, each: int, lag_bound: int) -> dict[str, object]:
        """Return the settings that do not depend on numbers, as dotted paths with values."""
        lag = {} if lag_bound == self.own_bound else {"mechanisms.lag_policy.bound": lag_bound}
        return {"resources.engine_devices": each, **lag}

    def scenario(self, key: SpeedKey, ends: Ends) -> Scenario | None:
        """Return a run on engines and trainers of two kinds, of as many as its gangs need; None: rules refuse it."""
        trainers = max(self.spec.policies[name].devices.most for name in self.spec.trainable_policies())
        engines = -(-trainers // key.each) * key.each if self.shared else key.each
        numbers = {"resources.rollout_devices": engines, "resources.training_devices": trainers}
        found = changed(self.spec, Alternative("", {**self.paths(key.each, key.lag_bound), **numbers}))
        if not isinstance(found, ExperimentSpec):
            return None
        profile = self.speeds(key).profile
        told, machines = workload(found, profile, ends), machine(found, profile, ends)
        return Scenario(spec=found, workload=told, machine=machines)


def engine_sizes(spec: ExperimentSpec, stock: Sequence[PoolStock]) -> list[int]:
    """List the devices of an engine that a host has, those that its models can be split over or the run's own."""
    own = spec.resources.engine_devices
    most = max((size for pool in stock for size in pool.hosts), default=1)
    legal = [each for each in SIZES if each <= most] if spec.resources.engine == "vllm" else []
    return sorted({*legal, own})


def lag_bounds(question: DeviceQuestion) -> list[int]:
    """List the lag bounds that may be chosen: the run's own alone, or those up to the highest that is wanted."""
    highest, own = question.wish.max_lag, question.own_bound
    if highest is None:
        return [own]
    return sorted({bound for bound in (0, 1, 2, 4, MOST_LAG, own, highest) if bound <= highest})


def setups(question: DeviceQuestion) -> Iterator[DeviceSetup]:
    """List every setup that rules and memory allow."""
    works: dict[SpeedKey, StepWork | None] = {}
    for rollout in question.stock:
        for each in engine_sizes(question.spec, [rollout]):
            if not holds_engines(question, rollout, each):
                continue
            for training in trained_in(question, rollout):
                for bound in lag_bounds(question):
                    key = SpeedKey(rollout.kind, each, training.kind, bound)
                    if key not in works:
                        works[key] = work_at(question, key, Ends()) if question.knows(key) else None
                    work = works[key]
                    if work is not None:
                        yield DeviceSetup(rollout, training, each, bound, work)


def trained_in(question: DeviceQuestion, rollout: PoolStock) -> Iterator[PoolStock]:
    """List the pools that may train what is played in a pool."""
    for pool in [rollout] if question.shared else question.stock:
        if not pool.preemptible and holds_trainers(question, pool):
            yield pool


def work_at(question: DeviceQuestion, key: SpeedKey, ends: Ends) -> StepWork | None:
    """Return the work of a step at one end of what is known; None: rules refuse the setup."""
    found = question.scenario(key, ends)
    return None if found is None else step_work(found)


def holds_engines(question: DeviceQuestion, pool: PoolStock, each: int) -> bool:
    """Tell whether engines of so many devices of a pool hold the run's policies, each alone at the least."""
    if pool.preemptible and question.wish.preemptible == "never":
        return False
    if not any(size >= each for size in pool.hosts):
        return False
    spec = question.spec.model_copy(
        update={"resources": question.spec.resources.model_copy(update={"engine_devices": each})}
    )
    sizes = memory.parameters_of(spec, {})
    held = (memory.engine(spec, [name], sizes, {name: LEAST}).total("low") for name in spec.policies)
    return not pool.memory_bytes or max(held) <= pool.memory_bytes


def holds_trainers(question: DeviceQuestion, pool: PoolStock) -> bool:
    """Tell whether a device of a pool holds each trained policy alone, at the least; a gang's ranks hold parts."""
    spec, sizes = question.spec, memory.parameters_of(question.spec, {})
    held = [
        memory.trainer(spec, [name], sizes, {name: LEAST}).total("low") / spec.policies[name].devices.most
        for name in spec.trainable_policies()
    ]
    return not pool.memory_bytes or max(held, default=0.0) <= pool.memory_bytes


def refusals(question: DeviceQuestion) -> list[Problem]:
    """Return why no set of devices can be chosen for a run at all."""
    allocation = question.spec.mechanisms.allocation
    if allocation.type == "colocated" and allocation.own_devices:
        hint = "Set own_devices: 0, or allocation: agent_centric."
        detail = "Devices are chosen for trainers that all share engines' devices, or none; some have their own."
        return [Problem(pointer="/mechanisms/allocation/own_devices", code="not_chosen", detail=detail, hint=hint)]
    if not question.spec.trainable_policies():
        detail = "Nothing is trained: there is no split of devices to choose."
        return [Problem(pointer="/policies", code="not_chosen", detail=detail, hint="Train at least one policy.")]
    return []
