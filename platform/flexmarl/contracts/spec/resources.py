"""What a run may use and when it ends: devices, budget, evaluation, checkpoints."""

from typing import Literal

from pydantic import Field

from flexmarl.contracts.base import Strict

MOST_TRAINING_DEVICES = 64


class Pace(Strict):
    """Declared service times of the trainer: one that is faster waits until they are over. It shows what scheduling
    gains on a machine that is too small for the models it is meant for; gradients and steps are the real ones."""

    micro_batch_s: float = Field(default=0.0, ge=0.0, le=3600.0)
    """Seconds per micro-batch, beside those of its rows."""
    row_s: float = Field(default=0.0, ge=0.0, le=60.0)
    """Seconds per row of a micro-batch, of which the ranks of a gang take a part each."""
    step_s: float = Field(default=0.0, ge=0.0, le=3600.0)
    """Seconds per optimizer step."""


class Resources(Strict):
    rollout_pool: str = Field(default="default", min_length=1, max_length=64)
    training_pool: str = Field(default="default", min_length=1, max_length=64)
    rollout_devices: int = Field(default=1, ge=1, le=64)
    """Engines; each holds one device."""
    engine_policies: int | None = Field(default=None, ge=1, le=1024)
    """Policies that an engine holds at once; null: all of them. With fewer places than policies, one that has none is
    loaded when it is asked, in the place of one that nobody asks. A vLLM engine keeps the memory of those it held."""
    engine_versions: Literal[1, 2] = 2
    """Versions of the policies that an engine serves at once. 2: newer weights come beside those that unsettled groups
    pin. 1: an engine is given its part of a step's groups, plays them to their end under the weights it has, then takes
    the newest ones and is given others; groups are pinned when they are given. Each engine does so at its own time."""
    training_devices: int = Field(default=1, ge=1, le=MOST_TRAINING_DEVICES)
    """Trainers; each holds one device, or with `colocated` allocation shares that of an engine.
    `mechanisms.allocation` says which policy is trained on which."""
    trainer_policies: int | None = Field(default=None, ge=1, le=1024)
    """Policies whose training state a trainer device holds at once; null: all of them. With fewer places than policies,
    one that has nothing to do is suspended when another needs its place."""
    engine: Literal["torch", "vllm"] = "torch"
    """What generates: the project's own `torch` engine, made for small models, or `vllm`, which the device workers must
    have been given an environment for."""
    pace: Pace = Pace()
    hold_s: float | None = Field(default=900.0, ge=0.0, le=604_800.0)
    """How long a paused run keeps its devices, unless the pause says otherwise; 0: not at all, null: until resumed."""

    def has_places(self, policies: int) -> bool:
        """Tell whether an engine holds fewer policies than there are, so that they share its places."""
        return self.engine_policies is not None and self.engine_policies < policies


class Target(Strict):
    """Stop as soon as an evaluation reaches a value."""

    metric: str = "eval/solved"
    value: float = 0.95


class Budget(Strict):
    train_steps: int = Field(default=400, ge=1, le=10_000_000)
    seconds: float | None = Field(default=None, gt=0.0)
    """Wall-clock limit from the first step; none when absent."""
    target: Target | None = None


class Evaluation(Strict):
    every_steps: int = Field(default=10, ge=1)
    tasks: int = Field(default=128, ge=1, le=65_536)
    """Held-out tasks, one greedy episode each."""


class Checkpoints(Strict):
    every_steps: int = Field(default=100, ge=1)
    """How often the newest vector is written; one that evaluates among the best is written too, and the last one."""
    keep_last: int = Field(default=2, ge=1, le=1000)
    """Newest checkpoints that stay."""
    keep_best: int = Field(default=1, ge=0, le=1000)
    """Checkpoints of the best evaluations that stay, by solved share, then team score; 0: none is written for that."""
    keep_every: int | None = Field(default=None, ge=1)
    """Checkpoints after every so many steps stay for good: a multiple of `every_steps`. What people pin stays too."""
