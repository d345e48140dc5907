"""What a run may use and when it ends: devices, budget, evaluation, checkpoints."""

from typing import Literal

from pydantic import Field

from flexmarl.contracts.base import Strict

MOST_TRAINING_DEVICES = 64
MOST_ENGINE_DEVICES = 16


class Pace(Strict):
    """Declared service times of the trainer: faster work waits until they have passed. For studying schedules on a
    small machine; gradients and steps are real."""

    micro_batch_s: float = Field(default=0.0, ge=0.0, le=3600.0)
    """Seconds per micro-batch, excluding its rows."""
    row_s: float = Field(default=0.0, ge=0.0, le=60.0)
    """Seconds per row of a micro-batch, divided among the ranks of a gang."""
    step_s: float = Field(default=0.0, ge=0.0, le=3600.0)
    """Seconds per optimizer step."""


class Resources(Strict):
    rollout_pool: str = Field(default="default", min_length=1, max_length=64)
    training_pool: str = Field(default="default", min_length=1, max_length=64)
    rollout_devices: int = Field(default=1, ge=1, le=64)
    """Devices of engines: one of each, or `engine_devices` of each."""
    engine_devices: int = Field(default=1, ge=1, le=MOST_ENGINE_DEVICES)
    """Devices of one engine, all of one host: its model is split over them by tensor parallelism. They are leased and
    released together. Above 1: vLLM only."""
    engine_policies: int | None = Field(default=None, ge=1, le=1024)
    """Policies that an engine holds at once; null: all. With fewer slots than policies, a requested policy without a
    slot replaces one without requests. A vLLM engine keeps the memory of replaced ones."""
    engine_versions: Literal[1, 2] = 2
    """Versions that an engine serves at once. 2: newer weights are loaded beside those that open groups still use. 1:
    each engine plays its groups to the end, then loads the newest weights and gets new groups."""
    training_devices: int = Field(default=1, ge=1, le=MOST_TRAINING_DEVICES)
    """Number of trainers; each leases one device, or with `colocated` allocation shares one with an engine."""
    trainer_policies: int | None = Field(default=None, ge=1, le=1024)
    """Policies whose training state a trainer device holds at once; null: all. With fewer slots than policies, idle
    ones are suspended when others need the slot."""
    engine: Literal["torch", "vllm"] = "torch"
    """Inference engine: `torch`, built in, for small models, or `vllm`, which must be installed for the device
    workers."""
    pace: Pace = Pace()
    hold_s: float | None = Field(default=900.0, ge=0.0, le=604_800.0)
    """How long a paused run keeps its devices, unless the pause sets it; 0: released immediately, null: kept until
    resumed."""

    @property
    def engines(self) -> int:
        """Number of engines."""
        return self.rollout_devices // self.engine_devices

    def has_places(self, policies: int) -> bool:
        """Tell whether an engine holds fewer policies than there are, so that they share its places."""
        return self.engine_policies is not None and self.engine_policies < policies


class Target(Strict):
    """Stop when an evaluation reaches a value."""

    metric: str = "eval/solved"
    value: float = 0.95


class Budget(Strict):
    train_steps: int = Field(default=400, ge=1, le=10_000_000)
    seconds: float | None = Field(default=None, gt=0.0)
    """Wall-clock limit from the first step; no limit when absent."""
    target: Target | None = None


class Evaluation(Strict):
    every_steps: int = Field(default=10, ge=1)
    tasks: int = Field(default=128, ge=1, le=65_536)
    """Number of held-out tasks, one greedy episode each."""


class Checkpoints(Strict):
    every_steps: int = Field(default=100, ge=1)
    """Checkpoint interval; the best evaluated vectors and the last one are written too."""
    keep_last: int = Field(default=2, ge=1, le=1000)
    """Number of newest checkpoints to keep."""
    keep_best: int = Field(default=1, ge=0, le=1000)
    """Number of checkpoints of the best evaluations to keep, by solved share, then team score; 0: none."""
    keep_every: int | None = Field(default=None, ge=1)
    """Keep every checkpoint at this interval of steps permanently: a multiple of `every_steps`. Pinned checkpoints are
    kept too."""


class Trajectories(Strict):
    training_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of training groups whose tokens are kept after training; 1: all. Evaluations are kept in full."""
