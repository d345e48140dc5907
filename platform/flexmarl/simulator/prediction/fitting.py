"""From the rows of a run to how fast everything of it was, and from that to the simulator's machines.

Both whoever plans by runs that ended and whoever plays one run again read speeds here: the rows of a run become one
`RunPace`, paces become a `Profile` (of many runs with ranges, of one run as it was), a profile becomes a `Machine`.

A figure that a run cannot tell is left out: its trainers' speed where they kept a declared pace, the rollout workers'
where episodes waited for a declared time. First tries warm up and are left out.
"""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Literal

from flexmarl.contracts.base import Strict
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.team import Lora
from flexmarl.contracts.timings import Commanded, RunRows
from flexmarl.simulator.prediction import estimates
from flexmarl.simulator.prediction.profile import OF_THE_PLATFORM, Ends, Profile, ProfileFigure, complete
from flexmarl.simulator.scenarios.scenario import Delays, EngineModel, Host, Machine, Scale, TrainerModel
from flexmarl.simulator.scenarios.teams import paced

VERSION = 5
"""Of what is read off a run; what was read otherwise is read anew."""
OTHERS = ("playing", "training", "both")
"""Figures of the platform that are no delays, but how many want a core."""
PROFILE_NAME = "Profile of "
"""How the name of a run begins that is made to be measured."""


class RunPace(Strict):
    """Figures by their names in `flexmarl.simulator.prediction.profile`, in seconds and tokens.

    Gradients are told by size: runs that cut micro-batches differently tell together what a token takes.
    """

    version: int = 0
    source: Literal["runs", "profile"]
    engine: str
    """What generated and trained on what: `torch on cpu`."""
    trainer: str
    environment: str
    episodes: int
    """Of a train step."""
    models: dict[str, dict[str, float]] = {}
    """Model -> figures."""
    gradients: dict[str, list[estimates.Gradients]] = {}
    """Model -> sizes."""
    parameters: dict[str, int] = {}
    """Model -> its parameters."""
    platform: dict[str, float] = {}
    roles: dict[str, dict[str, float]] = {}
    lasts: tuple[float, float, float] | None = None
    cores: int = 0
    """Of the host that all its processes shared; 0: they had several."""


def model_key(spec: ExperimentSpec, policy: str) -> str:
    """Name what of a policy decides how fast it is."""
    own = spec.policies[policy]
    tuning = f"lora {own.tuning.rank} {len(own.tuning.targets)}" if isinstance(own.tuning, Lora) else "full"
    ordered = ", ordered" if spec.mechanisms.ordered else ""
    return f"{own.source.label}, {own.precision}, {tuning}, {own.activations}{ordered}"


def engine_key(spec: ExperimentSpec) -> str:
    """Name what of the engines decides how fast they are."""
    devices = spec.resources.engine_devices
    return spec.resources.engine if devices == 1 else f"{spec.resources.engine} over {devices}"


def making_key(spec: ExperimentSpec, policy: str) -> str:
    """Name what decides how long a policy takes to be made."""
    own = spec.policies[policy].warmup
    warm = "cold" if own is None else f"{own.steps} x {own.batch_size} in {own.max_seconds:g} s"
    if own is not None and own.demonstrations is not None:
        warm += f" on {own.demonstrations.dataset.name} {own.demonstrations.dataset.digest[:12]}"
    if own is not None and own.rows is not None:
        warm += f" on rows {own.rows.name} {own.rows.digest[:12]}"
    return f"{model_key(spec, policy)}, {warm}"


def environment_key(spec: ExperimentSpec) -> str:
    """Name what decides how long episodes are; declared waits are not among it."""
    return spec.environment.model_copy(update={"latency": None}).model_dump_json()


def device_key(what: str) -> str:
    """Name a kind of device: all shares of a CPU are alike, accelerators go by their name."""
    return "cpu" if what.startswith("cpu") else what


def pace_of(spec: ExperimentSpec, rows: RunRows, devices: dict[str, str]) -> RunPace:
    """Say how fast everything of a run was, each thing as if it had a core for itself."""
    keys = {policy: model_key(spec, policy) for policy in spec.policies}
    on = {use: device_key(what) for use, what in devices.items()}
    rows = estimates.alone(rows)
    return RunPace(
        version=VERSION,
        source="profile" if spec.name.startswith(PROFILE_NAME) else "runs",
        engine=f"{engine_key(spec)} on {on.get('engine', '')}",
        trainer=f"torch on {on.get('trainer', on.get('engine', ''))}",
        environment=environment_key(spec),
        episodes=spec.batch.tasks_per_step * spec.batch.episodes_per_task,
        models={
            **{key: _model(spec, rows, [p for p in keys if keys[p] == key]) for key in dict.fromkeys(keys.values())},
            **{making_key(spec, p): {"trainer.create": s} for p in keys for s in rows.lasted.get(("bind", p), ())[-1:]},
        },
        gradients={
            key: estimates.sizes([row for row in _gradients(spec, rows) if keys.get(row.policy) == key])
            for key in dict.fromkeys(keys.values())
        },
        parameters={keys[policy]: count for policy, count in rows.parameters.items() if policy in keys},
        platform=_platform(spec, rows),
        cores=rows.cores,
        roles={role.role: {"role.prompt": role.prompt, "role.reply": role.reply} for role in rows.roles},
        lasts=rows.turns if rows.turns[0] else None,
    )


def profile_of(spec: ExperimentSpec, pace: RunPace) -> Profile:
    """Return what one run told of itself, without ranges; what it did not tell has a default."""
    told: dict[str, float] = dict(pace.platform)
    for policy in spec.policies:
        own = pace.models.get(model_key(spec, policy), {}) | pace.models.get(making_key(spec, policy), {})
        own |= estimates.line(pace.gradients.get(model_key(spec, policy), ()))
        told |= {f"{name} {policy}": value for name, value in own.items()}
    told |= {f"{name} {role}": value for role, own in pace.roles.items() for name, value in own.items()}
    figures = {n: ProfileFigure(low=s, likely=s, high=s, source=pace.source, of="1 run") for n, s in told.items()}
    return Profile(figures=complete(spec, figures), lasts=pace.lasts, parameters=pace.parameters, cores=pace.cores)


def machine(spec: ExperimentSpec, profile: Profile, ends: Ends) -> Machine:
    """Return the machines of one end of a profile. A policy that is slower than the first one is scaled as a whole."""
    first, *others = spec.policies

    def of(name: str) -> float:
        return profile.at(name, ends, first)

    platform = {name.removeprefix("platform."): profile.at(name, ends) for name in OF_THE_PLATFORM}
    row = max(1e-9, of("engine.row"))
    made = Machine(
        engine=EngineModel(
            token=of("engine.token"),
            batch=max(1.0, of("engine.token") / row),
            prefill=1.0 / max(1e-9, of("engine.prompt")),
            load=of("engine.load"),
            stepped=True,
        ),
        trainer=TrainerModel(
            micro_batch=of("trainer.micro_batch"),
            token=of("trainer.token"),
            step=of("trainer.step"),
            create=of("trainer.create"),
            swap=of("trainer.swap"),
        ),
        delays=Delays.model_validate({n: value for n, value in platform.items() if n not in OTHERS}),
        host=Host(cores=profile.cores, **{name: platform[name] for name in OTHERS}),
        scale={other: _scale(profile, ends, other, first) for other in others},
    )
    pace = spec.resources.pace
    return paced(spec, made) if pace.micro_batch_s or pace.row_s or pace.step_s else made


def _scale(profile: Profile, ends: Ends, policy: str, first: str) -> Scale:
    generation, training = (
        max(1e-9, profile.at(name, ends, policy)) / max(1e-9, profile.at(name, ends, first))
        for name in ("engine.token", "trainer.token")
    )
    return Scale(generation=generation, training=training)


def _model(spec: ExperimentSpec, rows: RunRows, policies: Sequence[str]) -> dict[str, float]:
    figures = estimates.decoding([row for row in rows.decoded if row.policy in policies])
    for name, kinds in {"engine.load": ("load",), "trainer.swap": ("suspend", "resume")}.items():
        lasted = [s for policy in policies for kind in kinds for s in rows.lasted.get((kind, policy), ())]
        if lasted:
            figures[name] = fmean(lasted)
    steps = [
        row.seconds / row.slow for row in rows.commanded if row.policy in policies and row.kind == "optimizer_step"
    ]
    if steps and not keeps_pace(spec):
        figures["trainer.step"] = fmean(steps)
    return figures


def keeps_pace(spec: ExperimentSpec) -> bool:
    """Tell whether trainers wait until a declared time has passed: what they take then says nothing of devices."""
    pace = spec.resources.pace
    return bool(pace.micro_batch_s or pace.row_s or pace.step_s)


def _gradients(spec: ExperimentSpec, rows: RunRows) -> list[Commanded]:
    return [] if keeps_pace(spec) else [row for row in rows.commanded if row.kind == "accumulate" and row.tokens]


def _platform(spec: ExperimentSpec, rows: RunRows) -> dict[str, float]:
    found = estimates.others(rows)
    if rows.hops:
        found["platform.hop"] = median(row.seconds for row in rows.hops)
        found |= estimates.carrying(rows.commanded, found["platform.hop"])
    if rows.picked_up:
        found["platform.pick_up"] = median(row.seconds for row in rows.picked_up)
    if rows.starts:
        found["platform.start"] = fmean(rows.starts)
    reports = [row.handled - row.done for row in rows.commanded if row.handled]
    if len(rows.settled) > estimates.QUEUED:
        found |= estimates.driver(rows.settled, median(reports) if reports else None)
    if spec.environment.latency is None and (turn := estimates.turns(rows.played, rows.generated)) is not None:
        found["platform.turn"] = turn
    return found
