"""One slot per mechanism of the orchestrator. A preset picks one option each: a published system is a preset."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name

GOES_ON = frozenset({"continue", "pause"})
"""Fates of surplus whose episodes are played to their end, for a later step."""


class LagPolicy(Strict):
    """How old the weights may be that made a row, and what happens to work that would grow too old."""

    bound: int = Field(default=0, ge=0, le=64)
    """Highest allowed own lag in versions; 0 is strictly on-policy on cohorts. With `at_cut: train` it is what
    admission allows."""
    at_admission: Literal["admit", "wait", "trained"] = "admit"
    """Next cohort: `admit` as soon as its steps to come fit the bound; `wait` until older groups settled as well; or
    until these are `trained` and what they taught is served. Surplus that goes on (`continue`, `pause`) is a credit: so
    many groups beyond those of a step may be on their way, whole steps or a part of one."""
    in_flight: Literal["finish", "continue", "resume", "restart_turn", "discard"] = "finish"
    """Running replies at an update: made to the end by the old weights; carried on by the new ones with the old
    attention cache (`continue`) or with a fresh one (`resume`); the turn or the whole group made anew."""
    at_cut: Literal["wait", "drop", "refresh", "train"] = "wait"
    """Groups about to exceed the bound: waited for, or dropped at the cut, or dropped and played again; or trained all
    the same (`train`): the bound is one of admission then, and what lasts longer than others is as old as it is."""


class Redundancy(Strict):
    """More episodes than a step needs, so that it need not wait for the slowest."""

    type: Literal["none", "extra_groups", "extra_members", "extra_environments"] = "none"
    extra: int = Field(default=0, ge=0, le=4096)
    """Groups beyond `tasks_per_step`, members beyond `episodes_per_task`, or environments of a group beyond its
    members: these play the group's slowest members once more, and the first of the two to finish counts."""
    share: float = Field(default=0.0, ge=0.0, le=64.0)
    """The same as a share of `tasks_per_step`, beside `extra`; only with `extra_groups`."""
    extra_members: int = Field(default=0, ge=0, le=4096)
    """With `extra_groups`: members beyond `episodes_per_task` in each of the groups too. A group settles when
    `episodes_per_task` of its members have finished, a step when `tasks_per_step` of its groups have settled."""
    surplus: Literal["join", "keep", "continue", "pause", "cancel", "defer"] = "cancel"
    """Groups left when the step has enough: those that settle until its gradients are done `join` it; what had
    settled is kept for the next step (`keep`); they play on for the next step (`continue`); or are cancelled. `pause`
    lets them go on as well, but they stand still while the step trains: their replies leave the engines with the
    tokens they have, and nothing of them is asked for until the next step proposes groups of its own; it needs
    `at_admission: trained` and `in_flight: resume`. `defer` cancels them too, and their tasks wait: as soon as they
    make a whole step, it plays them anew, all to the end."""

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: object) -> object:
        return {"type": data} if isinstance(data, str) else data


def _present(word: object) -> object:
    """Read the word by which earlier specifications name the one arbiter."""
    return "fair_share" if word == "fifo" else word


class Mover(Strict):
    """What engines serve, where `resources.engine_policies` or `resources.engine_versions` leaves a choice."""

    type: Literal["static", "demand", "repack"] = "static"
    """`static`: spread by the number of roles once, changed only for a policy that is asked and has no engine, and for
    lost engines. `demand`: a place also goes from a policy with short queues to one with long ones. `repack`, for
    engines that serve one version at a time: the replies that are left of one version are gathered on few of its
    engines, so that the others take newer weights and new groups."""
    delta: float = Field(default=5.0, gt=0.0, le=100_000.0)
    """Turns per engine by which the longest queue must exceed the shortest one before a place moves."""
    hold_s: float = Field(default=5.0, ge=0.0, le=86_400.0)
    """How long a policy keeps a place it was moved to, and one nobody asks keeps its last one, while others only have
    longer queues."""
    below: int = Field(default=32, ge=1, le=65_536)
    """With `repack`: an engine with fewer replies than this and none that waits may be emptied, and none is filled
    beyond it. Set as many as an engine makes together before each further one slows the others down."""
    every_s: float = Field(default=5.0, ge=1.0, le=86_400.0)
    """With `repack`: how often engines are looked at, besides after each committed update."""
    cache_tokens: int | None = Field(default=None, ge=1)
    """With `repack`: tokens that an engine's attention cache holds, beyond which none is filled; null: as many as
    `below` replies need."""

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: object) -> object:
        return {"type": data} if isinstance(data, str) else data


class Durability(Strict):
    """Which versions can be restored at once. Weights of every version are on disk before it counts; a version without
    its training state (the optimizer's) is restored from the last one that has it, by the recorded micro-batches."""

    type: Literal["every_step", "every_k", "async"] = "every_step"
    """Training state is on disk before a version counts: of each (`every_step`), of each `every`-th (`every_k`); or it
    is written beside the next step (`async`)."""
    every: int = Field(default=1, ge=1, le=1000)
    """Steps from one restorable version to the next; only with `every_k`."""

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: object) -> object:
        return {"type": data} if isinstance(data, str) else data


class Publication(Strict):
    """When new weights serve rollout, and what of them other hosts receive."""

    type: Literal["cohort", "wavefront", "delayed"] = "cohort"
    """When the next cohort may start: `cohort` once every policy's new weights are served, `wavefront` once those of
    its first turns are (a later turn waits for its own policy only), `delayed` on the weights of one step before."""
    content: Literal["auto", "full", "delta"] = "auto"
    """What a host receives that has an earlier version: all of the new one (`full`); what makes it of the one that is
    there, bit for bit, if that is any less (`delta`), or clearly less and worth the work (`auto`)."""

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: object) -> object:
        return {"type": data} if isinstance(data, str) else data


class Allocation(Strict):
    """Which policy is trained on which of the run's trainer devices, where they leave a choice."""

    type: Literal["agent_centric", "static", "colocated"] = "agent_centric"
    """`agent_centric`: a policy with gradients to compute is bound to devices on demand, and suspended with all that it
    has gathered when another needs them. `static`: each has its own devices, or its part of one, from beginning to
    end. `colocated`: trainers have no devices of their own but share those of the engines in turns: while an episode
    plays the engines are awake, then they sleep and what is ready is trained, on demand as above, and then they wake to
    what was published."""
    own_devices: int = Field(default=0, ge=0, le=64)
    """With `colocated`: so many of the trainers, the last ones, have devices of their own and train at any time, while
    episodes play too; the others share engines' devices in turns, when something waits that has no place on those."""
    homes: dict[Name, tuple[int, ...]] = {}
    """With `static` and `colocated`: policy -> which of the run's trainers it is trained on, counted from 0; those that
    share devices come first. One that is not named gets the device with the fewest policies, and with `colocated` any
    that is free. One whose device is lost waits for the next."""
    keep_warm_s: float | None = Field(default=None, ge=0.0, le=86_400.0)
    """How long a policy that has nothing to do keeps its devices although another waits for them; null: as long as a
    swap of policies takes, as it was measured, and no longer than until all its rows of a step are trained."""
    patience_s: float = Field(default=10.0, ge=0.0, le=86_400.0)
    """How long a policy waits at most for devices on which others have work left: then the one that has held them
    longest makes room between two micro-batches."""

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: object) -> object:
        return {"type": data} if isinstance(data, str) else data


class Parallel(Strict):
    """How much is played at the same time. Absent: whatever was proposed and waits for nothing else."""

    episodes: int | None = Field(default=None, ge=1, le=65_536)
    """Episodes of the run that one rollout worker plays at once; the others begin one by one, as places come free."""
    members: int | None = Field(default=None, ge=1, le=4096)
    """Members of one group at once."""
    agents: int | None = Field(default=None, ge=1, le=64)
    """Agents of one episode that are asked at once, where the environment asks several that do not depend on each
    other."""
    turns: Literal["own", "together"] = "own"
    """When an episode asks its next turn: as soon as its environment has answered (`own`), or when those of all
    episodes have that one rollout command plays at the moment (`together`; a command has `batch.rollout_groups`)."""


RouterName = Literal["least_loaded", "prefix_affinity", "length_aware", "skew_aware", "hardware_class", "version_aware"]


class Mechanisms(Strict):
    lag_policy: LagPolicy = LagPolicy()
    """Of every policy that states none of its own."""
    redundancy: Redundancy = Redundancy()
    router: RouterName = "least_loaded"
    """Which of the engines that hold a turn's weights answers it. `least_loaded`: the one with the fewest requests;
    `prefix_affinity`: the one that computed the beginning of the prompt before; `length_aware`: the one with the fewest
    tokens to make, for a long reply the one with the fewest requests; `skew_aware`: likewise, long replies having some
    engines to themselves and the longest being asked first; `hardware_class`: one whose device suits the
    prompt's and reply's lengths, as its node declares; `version_aware`: those that serve the version as their newest
    first. A preferred engine that is overloaded is passed over."""
    mover: Mover = Mover()
    parallel: Parallel = Parallel()
    publication: Publication = Publication()
    trainer_protocol: Literal["micro_batch", "batch", "mini_batch", "per_group"] = "micro_batch"
    """`micro_batch` accumulates gradients while the rest of the cohort still plays, `per_group` group by group; `batch`
    waits for all of it; `mini_batch` takes `batch.mini_batches` optimizer steps per cohort, each as soon as it can."""
    durability: Durability = Durability()
    policy_clock: bool = False
    """Each policy steps by its own counter, as soon as `batch.min_rows` of its rows are accumulated; rows of the old
    version that settle later are dropped as overtaken. Off: every policy steps once per cohort."""
    allocation: Allocation = Allocation()
    arbiter: Annotated[Literal["fair_share"], BeforeValidator(_present)] = "fair_share"
    """Order in which runs that share a pool get devices: priority, then the project's share over its weight, then age.
    All runs of a pool share one arbiter; `fifo` is what specifications of before called it."""
    ordered: bool = False
    """Promise bits: micro-batches are fixed slices by draw number, summed in turn, and engines compute a reply from its
    request alone. Slower; what depends on timing (a bound above 0, redundancy, a clock per policy) is refused."""
