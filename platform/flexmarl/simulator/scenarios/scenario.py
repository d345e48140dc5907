"""What is simulated: a specification, a workload, and how fast the machines are. Times are seconds.

The defaults of `Machine` are of the class of an 8-billion-parameter model on one accelerator; nothing of them is
measured here. `Delays` are the platform's own.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.hardware import Hardware
from flexmarl.contracts.ids import Name
from flexmarl.contracts.problems import broken_at
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.scenarios import chance
from flexmarl.simulator.scenarios.faults import Faults, Outage


class Spread(Strict):
    """A distribution: lognormal around a median or normal around a mean, cut to bounds, with a slow share on top."""

    median: float | None = Field(default=None, ge=0.0)
    """Of a lognormal distribution."""
    mean: float | None = Field(default=None, ge=0.0)
    """Of a normal distribution."""
    sigma: float = Field(default=0.0, ge=0.0)
    """Lognormal: standard deviation of the logarithm. Normal: standard deviation."""
    least: float = Field(default=0.0, ge=0.0)
    most: float = Field(default=float("inf"), gt=0.0)
    slow_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of draws that take `slow` more."""
    slow: float = Field(default=0.0, ge=0.0)

    def draw(self, key: int) -> float:
        """Return the value that belongs to a key."""
        value = self._plain(key)
        if self.slow_share and chance.uniform(key, 2) < self.slow_share:
            value += self.slow
        return value

    def _plain(self, key: int) -> float:
        middle = self.mean if self.median is None else self.median
        if middle is None:
            return self.least
        if self.sigma:
            noise = self.sigma * chance.normal(key, 1)
            middle = middle + noise if self.median is None else middle * 2.718281828459045**noise
        return min(self.most, max(self.least, middle))


def _fixed(value: object) -> object:
    return {"mean": value} if isinstance(value, int | float) else value


Amount = Annotated[Spread, BeforeValidator(_fixed)]
"""A number, or how it is spread."""


class RoleLoad(Strict):
    """What one turn of a role asks of an engine, in tokens."""

    prompt: Amount = Spread(mean=512)
    reply: Amount = Spread(median=256, sigma=1.0, least=1, most=8192)
    again: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the prompt of an episode's later turns that its turn before had: computed once by the same engine."""
    alike: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the prompt of first turns that all members of a group have: computed once by each engine."""


class Ranker(Strict):
    """A declared model of something that tells long replies from others before they are made."""

    share: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Of replies that count as long."""
    recall: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of these that are among as many that it expects to be the longest; its guesses are lengths with lognormal
    noise, as much as makes that so."""


Stages = tuple[Annotated[tuple[Name, ...], Field(min_length=1)], ...]


class Workload(Strict):
    """How episodes of a team go: rounds of stages, in each of which some roles are asked beside each other."""

    stages: Stages = Field(min_length=1)
    """Of one round, in order; a stage waits for the one before."""
    rounds: Amount = Spread(mean=1)
    """Rounds of an episode."""
    lasts: Amount | None = None
    """Stages of an episode that may end before all of its rounds are over; absent: none does."""
    lasts_alike: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of how much `lasts` differs that lies between groups: 1 where all episodes of a task are equally long."""
    roles: dict[Name, RoleLoad] = {}
    """Roles that differ from `each`."""
    each: RoleLoad = RoleLoad()
    environment: Amount = Spread()
    """What the environment takes behind each stage."""
    slow_start: Amount = Spread()
    """What the environment takes beside that behind the first stage of an attempt."""
    reward: Amount = Spread()
    """What the reward of an episode takes."""
    reward_token: float = Field(default=0.0, ge=0.0)
    """What it takes beside that for each reply token: of a reference or a reward model, say."""
    scorers: int | None = Field(default=None, ge=1)
    """Episodes that are given their rewards at once, in the order in which they end; null: all of them."""
    scored_last: bool = False
    """Rewards are given once no episode plays any more, as by systems whose stages wait for one another."""
    ranker: Ranker | None = None
    """Who tells routers which replies will be long; null: they go by replies that ended, as real workers do."""
    failure: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of attempts that break off at their end."""
    outages: tuple[Outage, ...] = ()
    """Times in which more of them do."""

    def failing(self, now: float) -> float:
        """Return the share of attempts that break off of those that end now."""
        if not self.outages:
            return self.failure
        return max([self.failure, *(outage.share for outage in self.outages if outage.since <= now < outage.until)])

    def shares(self, roles: Iterable[str]) -> dict[str, tuple[float, float]]:
        """Return what prompts of a role have in common (`again`, `alike`), of roles that have anything."""
        loads = {role: self.load(role) for role in roles}
        return {role: (own.again, own.alike) for role, own in loads.items() if own.again or own.alike}

    def load(self, role: str) -> RoleLoad:
        """Return what a turn of a role asks for."""
        return self.roles.get(role, self.each)


class EngineModel(Strict):
    token: float = Field(default=0.01, gt=0.0)
    """One decoding step for one request."""
    batch: float = Field(default=48.0, gt=0.0)
    """Requests beyond the first at which a step takes twice as long."""
    cell: float = Field(default=0.0, ge=0.0)
    """What reading the cache of one token adds to a step."""
    compute: float = Field(default=0.0, ge=0.0)
    """Arithmetic of one request in a step: a step takes no less than that of all its requests."""
    prefill: float = Field(default=8_000.0, gt=0.0)
    """Prompt tokens a second; prompts are computed one after the other, beside decoding."""
    mixed: float = Field(default=1.0, ge=1.0)
    """How many times as long a decoding step takes while a prompt is computed: chunks of it are in the same step."""
    slots: int = Field(default=256, ge=1)
    """Requests at once."""
    replicas: int = Field(default=1, ge=1)
    """Equal engines behind one device of the specification, over which requests are spread evenly."""
    kv_tokens: float = Field(default=float("inf"), gt=0.0)
    """Prompt and reply tokens that its cache holds."""
    cache: Literal["reserved", "grown"] = "reserved"
    """A request begins when there is room for its prompt and all of its reply (`reserved`); or for its prompt, and when
    the cache is full the youngest goes back to the queue, where what it had is computed again (`grown`)."""
    stepped: bool = False
    """Requests begin with whole steps, which their prompts make longer, and each set of weights makes its own; else
    prompts and replies flow beside each other."""
    load: float = Field(default=2.0, ge=0.0)
    """From the command to new weights being served."""
    turn: float = Field(default=1.0, ge=0.0)
    """To give its memory up to a trainer that shares its device, and to take it again."""

    @model_validator(mode="after")
    def _steps_are_plain(self) -> "EngineModel":
        """Refuse whole steps together with what only flowing ones have."""
        flowing = {"cell": 0.0, "compute": 0.0, "mixed": 1.0, "replicas": 1, "cache": "reserved"}
        wrong = next((name for name, plain in flowing.items() if getattr(self, name) != plain), None)
        if self.stepped and wrong is not None:
            raise broken_at(("stepped",), f"{wrong} is of engines whose replies flow: set false, or leave {wrong}")
        return self


class DeviceKind(Strict):
    """Devices that differ from the others."""

    devices: int = Field(ge=1)
    """How many, in the order of the run's devices: those of engines come first, then spares, then those of trainers."""
    hardware: Hardware = Hardware.ANY
    """Class by which the router `hardware_class` knows them."""
    engine: EngineModel = EngineModel()
    """Of engines on them; what is not said is not that of `machine.engine` but the default."""
    times: float = Field(default=1.0, gt=0.0)
    """How many times as long all else takes there: starts, loads, gradients, steps. Of a gang the slowest counts."""


class TrainerModel(Strict):
    token: float = Field(default=0.0002, ge=0.0)
    """Gradient of one token."""
    row: float = Field(default=0.0, ge=0.0)
    """Beside its tokens, of which the ranks of a gang take whole ones each."""
    micro_batch: float = Field(default=0.05, ge=0.0)
    """Beside its tokens."""
    times: float = Field(default=1.0, gt=0.0)
    """How many times as long gradients, steps and swaps take: of a critic that is trained beside each policy, say."""
    step: float = Field(default=1.0, ge=0.0)
    """Optimizer step and commit."""
    declared: bool = False
    """Gradients and steps take no other time than this, whoever else wants the host's cores: trainers keep a pace."""
    swap: float = Field(default=5.0, ge=0.0)
    """To suspend a policy, and to bring it back."""
    form: float = Field(default=0.5, ge=0.0)
    """To form a gang."""
    create: float = Field(default=5.0, ge=0.0)
    """To make a policy for the first time."""
    checkpoint: float = Field(default=0.0, ge=0.0)


class Delays(Strict):
    """What the platform itself takes."""

    report: float = Field(default=0.005, ge=0.0)
    """Latency from an event to the driver."""
    decide: float = Field(default=0.0005, ge=0.0)
    """Driver time per event; facts are handled one after the other."""
    hop: float = Field(default=0.003, ge=0.0)
    """Latency from a decision to an engine or trainer."""
    pick_up: float = Field(default=0.01, ge=0.0)
    """Latency from a decision to a rollout worker."""
    hold: float = Field(default=0.006, ge=0.0)
    """From a decision until rollout workers learn that what they play stands still, or goes on."""
    start: float = Field(default=5.0, ge=0.0)
    """To start a child."""
    turn: float = Field(default=0.0, ge=0.0)
    """A rollout worker's work on one turn; turns that come meanwhile wait, and are done and sent off together."""
    workers: int = Field(default=1, ge=1)
    """Rollout workers among which the episodes are shared out."""
    carry: float = Field(default=0.0, ge=0.0)
    """Node time per trainer command, which waits meanwhile: rows in, the result stored."""
    fetch: float = Field(default=0.0, ge=0.0)
    """Reading the rows of a micro-batch for which a trainer stands idle; else that is done while it works."""
    commit: float = Field(default=0.0, ge=0.0)
    """Additional node time per optimizer step: its weights are stored and the version is committed."""
    settle: float = Field(default=0.0, ge=0.0)
    """Time from a group's end until its rows are written, beside `report`."""


class Scale(Strict):
    """How many times as long the work of a policy takes as that of others."""

    generation: float = Field(default=1.0, gt=0.0)
    """On engines: prompts, and steps for a token of its replies, beside those of others on its engine. It is about the
    weights where steps wait for memory, and about the layers where they wait for exchanges and launches."""
    training: float = Field(default=1.0, gt=0.0)
    """On trainers: gradients, steps, swaps; and loads of what they made."""


def _of_all(value: object) -> object:
    return {"generation": value, "training": value} if isinstance(value, int | float) else value


_ONCE = Scale()


class Host(Strict):
    """The one host that everything runs on, where what runs beside each other shares its cores evenly.

    What work takes is said as if it had a core for itself.
    """

    cores: int = Field(default=0, ge=0)
    """0: everything has a core for itself."""
    playing: float = Field(default=0.0, ge=0.0)
    """Others that want a core beside engines and trainers at work while episodes are played, in the mean."""
    training: float = Field(default=0.0, ge=0.0)
    """The same while none are."""
    both: float = Field(default=0.0, ge=0.0)
    """While episodes are played and trainers have commands, as many as of either alone at least."""

    def rate(self, working: int, plays: bool, trains: bool) -> float:
        """Return what part of a core each of so many has that work."""
        alone = self.playing if plays else self.training
        others = max(self.both, self.playing, self.training) if plays and trains else alone
        return min(1.0, self.cores / (working + others))


class Machine(Strict):
    engine: EngineModel = EngineModel()
    trainer: TrainerModel = TrainerModel()
    delays: Delays = Delays()
    kinds: tuple[DeviceKind, ...] = ()
    """Kinds of devices, each of the next ones in their order; those that are left over are as `engine` says."""
    scale: dict[Name, Annotated[Scale, BeforeValidator(_of_all)]] = {}
    """Policy -> how many times as long everything of it takes, one number for all, or apart. Absent: once."""
    host: Host = Host()
    width: float = Field(default=1.0, gt=0.0)
    """Devices that one device of the run is made of: an engine takes as many times the requests at the same pace, a
    trainer takes as many times the tokens. Clusters that are cut into devices of other sizes stay comparable."""

    @property
    def wide_engine(self) -> EngineModel:
        """Return the model of an engine of this width."""
        own, width = self.engine, self.width
        wide = {"batch": own.batch * width, "prefill": own.prefill * width, "kv_tokens": own.kv_tokens * width}
        return own.model_copy(update=wide | {"slots": max(1, round(own.slots * width))}) if width != 1.0 else own

    def kind(self, number: int) -> DeviceKind:
        """Return the kind of a device by its number."""
        for kind in self.kinds:
            if number < kind.devices:
                return kind
            number -= kind.devices
        return DeviceKind(devices=1, engine=self.wide_engine)

    def times(self, policy: str) -> float:
        """Return how many times as long training a policy takes, and loading what was trained."""
        return self.scale.get(policy, _ONCE).training

    def answers(self, policy: str) -> float:
        """Return how many times as long answering for a policy takes."""
        return self.scale.get(policy, _ONCE).generation


class Scenario(Strict):
    """One simulation of a run that has its devices for itself."""

    spec: ExperimentSpec
    workload: Workload
    machine: Machine = Machine()
    faults: Faults = Faults()
    steps: int = Field(default=8, ge=1)
    """Train steps that are counted."""
    warm_up: int = Field(default=1, ge=0)
    """Train steps before these."""
    evaluates: bool = False
    """The specification's evaluations are played too."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    granularity: Literal["turn", "episode"] = "turn"
    """What is an event: the beginning and end of each `turn`, at each engine; or the end of an `episode`, whose turns
    are advanced with all others from tick to tick, on fleets of engines that share them evenly. Its rows are one per
    role then."""
    tick: float = Field(default=1.0, gt=0.0)
    """With `episode`: seconds from one look at the engines' load to the next."""

    @property
    def devices(self) -> int:
        """Count the devices: those of engines, spares, those of trainers that share none."""
        return self.spec.resources.most_rollout_devices + self.faults.spares + self.spec.own_trainers

    @model_validator(mode="after")
    def _team_is_known(self) -> "Scenario":
        """Refuse roles and policies that the team does not have."""
        agents, policies = list(self.spec.agents), list(self.spec.policies)
        for where, names, known in (
            (("workload", "stages"), [role for stage in self.workload.stages for role in stage], agents),
            (("workload", "roles"), list(self.workload.roles), agents),
            (("machine", "scale"), list(self.machine.scale), policies),
        ):
            wrong = next((name for name in names if name not in known), None)
            if wrong is not None:
                raise broken_at(where, f"{wrong} is not in the team, which has {', '.join(known)}")
        return self

    @model_validator(mode="after")
    def _faults_meet_devices(self) -> "Scenario":
        """Refuse faults of devices and hosts that are not there."""
        faults, hosts = self.faults, -(-self.devices // (self.faults.node_devices or self.devices))
        for name, numbers, known in (
            ("children", [one.device for one in faults.children], self.devices),
            ("slow", [one.device for one in faults.slow], self.devices),
            ("nodes", [one.node for one in faults.nodes], hosts),
        ):
            wrong = next((number for number in numbers if number >= known), None)
            if wrong is not None:
                what = "host" if name == "nodes" else "device"
                raise broken_at(("faults", name), f"there is no {what} {wrong}; the last one is {known - 1}")
        return self

    @model_validator(mode="after")
    def _turns_are_events(self) -> "Scenario":
        if self.granularity == "turn":
            return self
        if self.spec.mechanisms.parallel.turns == "together":
            raise broken_at(("granularity",), "episode cannot simulate turns: together; set turn")
        if self.spec.resources.engine_versions == 1:
            raise broken_at(("granularity",), "episode distributes turns over all engines with a version: set turn")
        if self.spec.abandon_bounds():
            raise broken_at(("granularity",), "episode cannot give episodes up between turns (at_turn): set turn")
        if self.workload.lasts is not None or self.machine.delays.turn:
            rule = "workload.lasts and machine.delays.turn need turns: set turn, or remove them"
            raise broken_at(("granularity",), rule)
        if self.machine.host.cores:
            raise broken_at(("granularity",), "machine.host needs single events: set turn, or remove it")
        return self


def scenario(document: dict[str, Any]) -> Scenario:
    """Read a scenario; one without a workload's stages asks the agents one after the other."""
    spec, workload = document.get("spec"), document.get("workload", {})
    team = spec.get("agents") if isinstance(spec, Mapping) else None
    if isinstance(team, Mapping) and team and isinstance(workload, Mapping):
        workload = {"stages": [[name] for name in team], **workload}
    return Scenario.model_validate({**document, "workload": workload})
