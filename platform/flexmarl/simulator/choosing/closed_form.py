"""What a train step takes on every number of devices: a closed form over the work of its stages.

With E engines and T trainer devices, rollout takes r(E) = longest episode + work / E, training t(T) = work / T, or what
the policy that takes longest needs alone; optimizer steps of policies that share a device follow one another, and
evaluations are work of engines, spread over all steps. A step takes no less than the engines' work, no less than the
trainers', and no less than the path from a cohort's first prompt to its new weights divided by the cohorts that may
overlap, 1 + lag bound: in so many parts, through both stages once, and then once more the slower stage for each further
part. Devices that both share take all of it in turns.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flexmarl.algorithms.placement import Stage
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.choosing.objectives import Bottleneck
from flexmarl.simulator.prediction.placing import CohortWork, cohort_work, profile
from flexmarl.simulator.scenarios.scenario import Scenario

Numbers = NDArray[np.float64]
TERMS: tuple[Bottleneck, ...] = ("engines", "trainers", "path")


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step takes of engines of one kind and size, and of trainers of one kind."""

    rollout: Stage
    training: Stage
    alone_s: float
    """Gradients of the policy that takes longest, on all the devices that it may have."""
    parts: int
    policies: int
    """Trained ones."""
    shared: bool
    start_s: float
    """To start engines and trainers."""
    create_s: float
    """To make one policy; those that share a device are made one after the other."""

    def begins_s(self, trainers: Numbers) -> Numbers:
        """Return what passes before the first step begins."""
        found: Numbers = self.start_s + self.create_s * np.ceil(self.policies / np.minimum(trainers, self.policies))
        return found

    def terms(self, engines: Numbers, trainers: Numbers, lag_bound: int) -> dict[Bottleneck, Numbers]:
        """Return what each term alone makes a step take, for arrays of numbers of one shape."""
        served = self.rollout.work_s / engines
        trained = np.maximum(self.training.work_s / np.minimum(trainers, self.training.most), self.alone_s)
        step = self.training.close_s * np.ceil(self.policies / np.minimum(trainers, self.policies))
        close = step + self.rollout.close_s
        played = self.rollout.least_s + served
        if self.shared:
            whole = played + trained + close + self.rollout.switch_s + self.training.switch_s
            return {"engines": served, "trainers": trained + close, "path": whole}
        parts = self.parts
        path = (played + trained) / parts + (parts - 1) / parts * np.maximum(played, trained) + close
        return {"engines": served, "trainers": trained + step, "path": path / (1 + lag_bound)}

    def step_s(self, engines: Numbers, trainers: Numbers, lag_bound: int) -> Numbers:
        """Return seconds per step."""
        engine_s, trainer_s, path_s = self.terms(engines, trainers, lag_bound).values()
        found: Numbers = np.maximum(np.maximum(engine_s, trainer_s), path_s)
        return found

    def bounds(self, engines: int, trainers: int, lag_bound: int) -> dict[Bottleneck, float]:
        """Return the terms of one number of devices."""
        one = self.terms(np.array([float(engines)]), np.array([float(trainers)]), lag_bound)
        return {name: float(value[0]) for name, value in one.items()}


def step_work(scenario: Scenario, work: CohortWork | None = None) -> StepWork:
    """Return the work of a step of a scenario; `work` where it is known already."""
    spec, shared = scenario.spec, scenario.spec.mechanisms.allocation.type == "colocated"
    work = work or cohort_work(scenario)
    parts = parts_of(spec)
    stages = profile(scenario, work, parts, "temporal" if shared else "spatial")
    rollout, training = stages["rollout"], stages["training"]
    evaluated = spec.evaluation.tasks * spec.evaluation.attempts / spec.evaluation.every_steps
    more = 1.0 + evaluated / (spec.batch.tasks_per_step * spec.batch.episodes_per_task)
    played = replace(rollout, work_s=rollout.work_s * more)
    learnt = {n: work.replies[n] * scenario.machine.times(n) for n in spec.trainable_policies()}
    total = sum(learnt.values())
    alone = [tokens / total / spec.policies[name].devices.most for name, tokens in learnt.items() if total]
    return StepWork(
        rollout=played,
        training=training,
        alone_s=training.work_s * max(alone, default=0.0),
        parts=parts,
        policies=len(learnt),
        shared=shared,
        start_s=scenario.machine.delays.start,
        create_s=scenario.machine.trainer.create,
    )


def parts_of(spec: ExperimentSpec) -> int:
    """Return the micro-batches of a cohort that are trained while others are being played."""
    whole = spec.mechanisms.trainer_protocol == "batch"
    return 1 if whole else -(-spec.batch.tasks_per_step // spec.batch.micro_batch_groups)
