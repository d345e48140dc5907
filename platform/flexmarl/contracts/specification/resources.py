"""What a run may use and when it ends: devices, budget, evaluation, checkpoints."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.problems import broken_at

MOST_ROLLOUT_DEVICES = 64
MOST_TRAINING_DEVICES = 64
MOST_ENGINE_DEVICES = 16
_EXAMPLE = "{min: 1, max: 4}"


class Pace(Strict):
    """Declared service times of the trainer: faster work waits until they have passed. For studying schedules on a
    small machine; gradients and steps are real."""

    micro_batch_s: float = Field(default=0.0, ge=0.0, le=3600.0)
    """Seconds per micro-batch, excluding its rows."""
    row_s: float = Field(default=0.0, ge=0.0, le=60.0)
    """Seconds per row of a micro-batch, divided among the ranks of a gang."""
    step_s: float = Field(default=0.0, ge=0.0, le=3600.0)
    """Seconds per optimizer step."""


class DeviceRange(Strict):
    """Devices of engines of a fleet that grows and shrinks while its run goes on."""

    min: int = Field(ge=1, le=MOST_ROLLOUT_DEVICES)
    """Devices that the run starts with and is never asked to give back."""
    max: int = Field(ge=1, le=MOST_ROLLOUT_DEVICES)
    """Devices that it takes while nobody waits for them."""

    @model_validator(mode="after")
    def _in_order(self) -> "DeviceRange":
        if self.max < self.min:
            raise broken_at(["max"], f"max is {self.max}, less than min: at least {self.min} is legal")
        return self


def _number_or_range(value: object) -> object:
    if isinstance(value, str):  # such as 1-4, which the form of a new run takes
        raise broken_at([], f"rollout_devices is a text: send a number, 1 to {MOST_ROLLOUT_DEVICES}, or {_EXAMPLE}")
    return value


def _form_of(value: object) -> str:
    return "range" if isinstance(value, dict | DeviceRange) else "count"


_RolloutDevices = Annotated[
    Annotated[int, Field(ge=1, le=MOST_ROLLOUT_DEVICES), Tag("count")] | Annotated[DeviceRange, Tag("range")],
    Discriminator(_form_of),
    BeforeValidator(_number_or_range),
]


class Resources(Strict):
    rollout_pool: str = Field(default="default", min_length=1, max_length=64)
    training_pool: str = Field(default="default", min_length=1, max_length=64)
    rollout_devices: _RolloutDevices = 1
    """Devices of engines: one of each, or `engine_devices` of each. A number, or `{min: 1, max: 4}`: the run starts
    with `min`; free devices of its pool join up to `max` while it goes on, and are given back to runs that wait."""
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
    replan: Literal["propose", "apply"] = "propose"
    """What becomes of other devices that measured rates ask for while a run with a plan goes on: they are proposed, or
    another run goes on with them from the newest checkpoint by itself, and this one stops."""
    hold_s: float | None = Field(default=900.0, ge=0.0, le=604_800.0)
    """How long a paused run keeps its devices, unless the pause sets it; 0: released immediately, null: kept until
    resumed."""

    @property
    def least_rollout_devices(self) -> int:
        """Devices of engines that the run starts with."""
        return self.rollout_devices if isinstance(self.rollout_devices, int) else self.rollout_devices.min

    @property
    def most_rollout_devices(self) -> int:
        """Devices of engines that it has at most."""
        return self.rollout_devices if isinstance(self.rollout_devices, int) else self.rollout_devices.max

    @property
    def elastic(self) -> bool:
        """Tell whether the number of engines may change while the run goes on."""
        return self.most_rollout_devices > self.least_rollout_devices

    @property
    def engines(self) -> int:
        """Number of engines that the run starts with."""
        return self.least_rollout_devices // self.engine_devices

    @property
    def most_engines(self) -> int:
        """Number of engines that it has at most."""
        return self.most_rollout_devices // self.engine_devices

    def has_places(self, policies: int) -> bool:
        """Tell whether an engine holds fewer policies than there are, so that they share its places."""
        return self.engine_policies is not None and self.engine_policies < policies


class Target(Strict):
    """Stop when an evaluation reaches a value."""

    metric: str = "eval/solved"
    value: float = 0.95


class Budget(Strict):
    train_steps: int = Field(default=400, ge=0, le=10_000_000)
    """Number of train steps. 0: nothing is trained; the run plays its held-out tasks once, and ends."""
    seconds: float | None = Field(default=None, gt=0.0)
    """Wall-clock limit from the first step; no limit when absent."""
    target: Target | None = None


class Evaluation(Strict):
    every_steps: int = Field(default=10, ge=1)
    tasks: int = Field(default=128, ge=1, le=65_536)
    """Number of held-out tasks."""
    attempts: int = Field(default=1, ge=1, le=1024)
    """Episodes of each task."""
    greedy: bool = True
    """Reply with the likeliest token at every place; false: sample as the agents do in training."""


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
