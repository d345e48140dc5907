"""One slot per mechanism of the orchestrator. A preset picks one option each: a published system is a preset."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name
from flexmarl.contracts.plugins import OneOf
from flexmarl.contracts.specification.movers import MOVER, MoverOptions, StaticMoverOptions
from flexmarl.contracts.specification.reading import none_of, one_of, read_when
from flexmarl.contracts.specification.redundancies import REDUNDANCY, NoRedundancyOptions, RedundancyOptions
from flexmarl.contracts.specification.rollout_window import PlayedWindow, RolloutWindow
from flexmarl.contracts.specification.routers import ROUTER, LeastLoadedOptions, RouterOptions
from flexmarl.contracts.specification.scaling import Scaling

_LAGGING = read_when((none_of("bound", 0),))
_SWEPT = read_when((none_of("bound", 0), one_of("at_cut", "drop", "refresh")))
_ON_DEMAND = read_when((one_of("type", "agent_centric", "colocated"),))


class LagPolicy(Strict):
    """Maximum age of the weights that generate a row, and what happens to work that would exceed it."""

    bound: int = Field(default=0, ge=0, le=64)
    """Maximum own lag in versions; 0 is strictly on-policy on cohorts. With `at_cut: train` it limits admission
    only."""
    at_admission: Literal["admit", "wait", "trained"] = "admit"
    """When the next cohort starts: as soon as its expected steps fit the bound (`admit`); when older groups have
    settled too (`wait`); or when these are also trained and published (`trained`). Continued surplus (`continue`,
    `pause`) counts as credit: that many groups beyond one step may be in flight."""
    in_flight: Literal["finish", "continue", "resume", "restart_turn", "discard"] = Field(
        default="finish", json_schema_extra=_LAGGING
    )
    """Running replies at a weight update: finished by the old weights (`finish`); continued by the new ones with the
    old KV cache (`continue`) or a recomputed one (`resume`); or the turn or the whole group is restarted."""
    at_cut: Literal["wait", "drop", "refresh", "train"] = Field(default="wait", json_schema_extra=_LAGGING)
    """Groups that would exceed the bound at the cut: wait for them, drop them, drop and play them again (`refresh`), or
    train on them anyway (`train`; the bound then limits admission only)."""
    at_turn: Literal["play", "abandon"] = Field(default="play", json_schema_extra=_SWEPT)
    """Episodes whose rows already exceed the bound when a turn is due: played to their end (`play`), or given up
    before that turn (`abandon`). Only with `drop` or `refresh` at the cut, which would remove these rows anyway."""


class Durability(Strict):
    """Which versions can be restored directly. Weights of every version are on disk before it counts; a version without
    optimizer state is rebuilt from the last one that has it, by the recorded micro-batches."""

    type: Literal["every_step", "every_k", "async"] = "every_step"
    """When training state is written: with every version (`every_step`), every k-th version (`every_k`), or in the
    background during the next step (`async`)."""
    every: int = Field(default=1, ge=1, le=1000, json_schema_extra=read_when((one_of("type", "every_k"),)))
    """Interval in steps; only with `every_k`."""

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: object) -> object:
        return {"type": data} if isinstance(data, str) else data


class Publication(Strict):
    """When new weights serve rollout, and how they are transferred to other hosts."""

    type: Literal["cohort", "wavefront", "delayed"] = "cohort"
    """When the next cohort may start: once every policy's new weights are served (`cohort`), once those of its first
    turns are, later turns waiting for their own policy only (`wavefront`), or on the weights of one step before
    (`delayed`)."""
    content: Literal["auto", "full", "delta"] = "auto"
    """Transfer to a host that has an earlier version: all weights (`full`), an exact delta if smaller (`delta`), or an
    exact delta if clearly smaller (`auto`)."""

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: object) -> object:
        return {"type": data} if isinstance(data, str) else data


class Allocation(Strict):
    """Which policy is trained on which of the run's trainer devices."""

    type: Literal["agent_centric", "static", "colocated"] = "agent_centric"
    """`agent_centric`: policies with gradients to compute are bound to devices on demand and suspended, with their
    accumulated gradients, when another needs the device. `static`: each has its own devices, or a share of one, for the
    whole run. `colocated`: trainers share the engines' devices in turns: engines serve while episodes play, then sleep
    while training runs, then wake with the published weights."""
    own_devices: int = Field(default=0, ge=0, le=64, json_schema_extra=read_when((one_of("type", "colocated"),)))
    """With `colocated`: number of trainers (the last ones) with devices of their own, which train at any time; the
    others share the engines' devices in turns."""
    window: RolloutWindow = Field(default=PlayedWindow(), json_schema_extra=read_when((one_of("type", "colocated"),)))
    """With `colocated`: how long engines have shared devices in each step."""
    homes: dict[Name, tuple[int, ...]] = Field(
        default={}, json_schema_extra=read_when((one_of("type", "static", "colocated"),))
    )
    """With `static` and `colocated`: policy -> indices of the run's trainers it is trained on, from 0; trainers on
    shared devices come first. Others get the device with the fewest policies; with `colocated`, any free one."""
    keep_warm_s: float | None = Field(default=None, ge=0.0, le=86_400.0, json_schema_extra=_ON_DEMAND)
    """How long an idle policy keeps its devices while another waits for them; null: as long as a measured policy swap
    takes, and at most until all its rows of a step are trained."""
    patience_s: float = Field(default=10.0, ge=0.0, le=86_400.0, json_schema_extra=_ON_DEMAND)
    """Maximum time a policy waits for busy devices; then the policy that has held them longest yields between two
    micro-batches."""

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: object) -> object:
        return {"type": data} if isinstance(data, str) else data


class Parallel(Strict):
    """Concurrency limits. Absent: no limit."""

    episodes: int | None = Field(default=None, ge=1, le=65_536)
    """Maximum episodes of the run played concurrently by one rollout worker."""
    members: int | None = Field(default=None, ge=1, le=4096)
    """Maximum concurrent members of one group."""
    agents: int | None = Field(default=None, ge=1, le=64)
    """Maximum agents of one episode queried concurrently, where the environment allows it."""
    turns: Literal["own", "together"] = "own"
    """When an episode requests its next turn: as soon as its environment has answered (`own`), or together with all
    episodes of its rollout command (`together`; a command has `batch.rollout_groups`)."""


class Mechanisms(Strict):
    lag_policy: LagPolicy = LagPolicy()
    """Default for every policy without its own."""
    redundancy: Annotated[RedundancyOptions, OneOf(REDUNDANCY)] = NoRedundancyOptions()
    """More episodes than a step needs, so that it does not wait for the slowest."""
    router: Annotated[RouterOptions, OneOf(ROUTER)] = LeastLoadedOptions()
    """Which of the engines that hold a turn's weights serves it."""
    mover: Annotated[MoverOptions, OneOf(MOVER)] = StaticMoverOptions()
    """Which policies engines serve, where `engine_policies` or `engine_versions` in `resources` leaves a choice."""
    parallel: Parallel = Parallel()
    dispatch: Literal["drawn", "longest_first"] = "drawn"
    """Order in which the groups of a step are sent to play: as their tasks were drawn (`drawn`), or those first that
    are expected to be longest, by what earlier groups of the same task said (`longest_first`). Experimental."""
    publication: Publication = Publication()
    trainer_protocol: Literal["micro_batch", "batch", "mini_batch", "per_group"] = "micro_batch"
    """`micro_batch` accumulates gradients while the rest of the cohort is still playing, `per_group` group by group;
    `batch` waits for the whole cohort; `mini_batch` takes `batch.mini_batches` optimizer steps per cohort, each as
    early as possible."""
    durability: Durability = Durability()
    policy_clock: bool = False
    """Each policy steps on its own counter, as soon as `batch.min_rows` of its rows are accumulated; rows of the old
    version that settle later are dropped as overtaken. Off: every policy steps once per cohort."""
    allocation: Allocation = Allocation()
    scaling: Scaling = Scaling()
    arbiter: Literal["fair_share"] = "fair_share"
    """Order in which runs that share a pool get devices: priority, then the project's share over its weight, then age.
    All runs of a pool share one arbiter."""
    ordered: bool = False
    """Bitwise reproducible runs: micro-batches are fixed slices by draw number, summed in order, and replies depend on
    their request alone. Slower; options that depend on timing (redundancy, policy_clock, a bound above 0 unless
    `publication` is `delayed`) are refused."""
