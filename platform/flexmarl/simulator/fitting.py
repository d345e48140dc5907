"""From the rows of a run to how fast everything of it was, and from that to the simulator's machines.

Both whoever plans by runs that ended and whoever plays one run again read speeds here: the rows of a run become one
`RunPace`, paces become a `Profile` (of many runs with ranges, of one run as it was), a profile becomes a `Machine`.

A figure that a run cannot tell is left out: its trainers' speed where they kept a declared pace, the rollout workers'
where episodes waited for a declared time. First tries warm up and are left out.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import fmean, median
from typing import Literal, NamedTuple

import numpy as np

from flexmarl.contracts.base import Strict
from flexmarl.contracts.paces import Commanded, Decoded, Played, RunRows, Settled
from flexmarl.contracts.spec import ExperimentSpec
from flexmarl.contracts.spec.team import FactoryModel, Lora
from flexmarl.simulator.profile import OF_THE_PLATFORM, Ends, Figure, Profile, complete
from flexmarl.simulator.recorded import RecordedTurn
from flexmarl.simulator.scenario import Delays, EngineModel, Machine, TrainerModel
from flexmarl.simulator.teams import paced

WARM_SHARE = 0.1
"""Oldest rows of a kind that are left out."""
QUEUED = 20
"""Facts that must have waited behind others, to tell how long the driver works on one."""
PROFILE_NAME = "Profile of "
"""How the name of a run begins that is made to be measured."""


class RunPace(Strict):
    """Figures by their names in `flexmarl.simulator.profile`, in seconds and tokens."""

    source: Literal["runs", "profile"]
    engine: str
    """What generated and trained on what: `torch on cpu`."""
    trainer: str
    environment: str
    episodes: int
    """Of a train step."""
    models: dict[str, dict[str, float]] = {}
    """Model -> figures."""
    parameters: dict[str, int] = {}
    """Model -> its parameters."""
    platform: dict[str, float] = {}
    roles: dict[str, dict[str, float]] = {}
    lasts: tuple[float, float] | None = None


def model_key(spec: ExperimentSpec, policy: str) -> str:
    """Name what of a policy decides how fast it is."""
    own = spec.policies[policy]
    model = f"factory {own.model.size}" if isinstance(own.model, FactoryModel) else own.model.path
    tuning = f"lora {own.tuning.rank} {len(own.tuning.targets)}" if isinstance(own.tuning, Lora) else "full"
    ordered = ", ordered" if spec.mechanisms.ordered else ""
    return f"{model}, {own.precision}, {tuning}, {own.activations}{ordered}"


def making_key(spec: ExperimentSpec, policy: str) -> str:
    """Name what decides how long a policy takes to be made."""
    own = spec.policies[policy].warmup
    warm = "cold" if own is None else f"{own.steps} x {own.batch_size} in {own.max_seconds:g} s"
    return f"{model_key(spec, policy)}, {warm}"


def environment_key(spec: ExperimentSpec) -> str:
    """Name what decides how long episodes are; declared waits are not among it."""
    return spec.environment.model_copy(update={"latency": None}).model_dump_json()


def device_key(what: str) -> str:
    """Name a kind of device: all shares of a CPU are alike, accelerators go by their name."""
    return "cpu" if what.startswith("cpu") else what


def pace_of(spec: ExperimentSpec, rows: RunRows, devices: dict[str, str]) -> RunPace:
    """Say how fast everything of a run was."""
    keys = {policy: model_key(spec, policy) for policy in spec.policies}
    on = {use: device_key(what) for use, what in devices.items()}
    return RunPace(
        source="profile" if spec.name.startswith(PROFILE_NAME) else "runs",
        engine=f"{spec.resources.engine} on {on.get('engine', '')}",
        trainer=f"torch on {on.get('trainer', on.get('engine', ''))}",
        environment=environment_key(spec),
        episodes=spec.batch.tasks_per_step * spec.batch.episodes_per_task,
        models={
            **{key: _model(spec, rows, [p for p in keys if keys[p] == key]) for key in dict.fromkeys(keys.values())},
            **{making_key(spec, p): {"trainer.create": s} for p in keys for s in rows.lasted.get(("bind", p), ())[-1:]},
        },
        parameters={keys[policy]: count for policy, count in rows.parameters.items() if policy in keys},
        platform=_platform(spec, rows),
        roles={role.role: {"role.prompt": role.prompt, "role.reply": role.reply} for role in rows.roles},
        lasts=rows.turns if rows.turns[0] else None,
    )


class Fit(NamedTuple):
    """How fast one run was."""

    machine: Machine
    at_once: float
    """Tokens of a decode step."""
    tokens_s: float
    """Reply tokens a second of an engine that generates."""
    workers: bool
    """The rollout workers' own time is told, so that an episode takes nothing beside it and its engines."""

    def beside_engine_s(self, turns: Sequence[RecordedTurn]) -> float:
        """Return what a turn took beside its engine's work, in the mean."""
        engine = self.machine.engine
        step = engine.token * (1.0 + (max(1.0, self.at_once) - 1.0) / engine.batch)
        return max(0.0, fmean(turn.latency_s for turn in turns) - step * fmean(turn.reply for turn in turns))


def fit(spec: ExperimentSpec, rows: RunRows) -> Fit:
    """Return how fast one run was by its own rows, without ranges; what they do not tell has a default."""
    pace = pace_of(spec, rows, {})
    made = [(row.steps, row.tokens, row.seconds) for row in rows.decoded]
    steps, tokens, seconds = (sum(column) for column in zip((0, 0, 0.0), *made, strict=True))
    return Fit(
        machine=machine(spec, profile_of(spec, pace), Ends()),
        at_once=tokens / steps if steps else 1.0,
        tokens_s=tokens / seconds if seconds else 0.0,
        workers="platform.turn" in pace.platform,
    )


def profile_of(spec: ExperimentSpec, pace: RunPace) -> Profile:
    """Return what one run told of itself, without ranges; what it did not tell has a default."""
    told: dict[str, float] = dict(pace.platform)
    for policy in spec.policies:
        own = pace.models.get(model_key(spec, policy), {}) | pace.models.get(making_key(spec, policy), {})
        told |= {f"{name} {policy}": value for name, value in own.items()}
    figures = {n: Figure(low=s, likely=s, high=s, source=pace.source, of="1 run") for n, s in told.items()}
    return Profile(figures=complete(spec, figures), lasts=pace.lasts, parameters=pace.parameters)


def machine(spec: ExperimentSpec, profile: Profile, ends: Ends) -> Machine:
    """Return the machines of one end of a profile. A policy that is slower than the first one is scaled as a whole."""
    first, *others = spec.policies

    def of(name: str) -> float:
        return profile.at(name, ends, first)

    row = max(1e-9, of("engine.row"))
    made = Machine(
        engine=EngineModel(
            token=of("engine.token"),
            batch=max(1.0, of("engine.token") / row),
            prefill=1.0 / max(1e-9, of("engine.prompt")),
            load=of("engine.load"),
        ),
        trainer=TrainerModel(
            micro_batch=of("trainer.micro_batch"),
            token=of("trainer.token"),
            step=of("trainer.step"),
            create=of("trainer.create"),
            swap=of("trainer.swap"),
        ),
        delays=Delays.model_validate({n.removeprefix("platform."): profile.at(n, ends) for n in OF_THE_PLATFORM}),
        scale={other: times for other in others if (times := _times(profile, ends, other, first)) != 1.0},
    )
    pace = spec.resources.pace
    return paced(spec, made) if pace.micro_batch_s or pace.row_s or pace.step_s else made


def _times(profile: Profile, ends: Ends, policy: str, first: str) -> float:
    names = ("engine.token", "trainer.token")
    return fmean(profile.at(name, ends, policy) / max(1e-9, profile.at(name, ends, first)) for name in names)


def _model(spec: ExperimentSpec, rows: RunRows, policies: Sequence[str]) -> dict[str, float]:
    figures = decoding([row for row in rows.decoded if row.policy in policies])
    for name, kinds in {"engine.load": ("load",), "trainer.swap": ("suspend", "resume")}.items():
        lasted = [s for policy in policies for kind in kinds for s in rows.lasted.get((kind, policy), ())]
        if lasted:
            figures[name] = fmean(lasted)
    pace = spec.resources.pace
    if not (pace.micro_batch_s or pace.row_s or pace.step_s):
        own = [row for row in rows.commanded if row.policy in policies]
        figures |= gradients([row for row in own if row.kind == "accumulate"])
        steps = [row.seconds for row in _warm(own) if row.kind == "optimizer_step"]
        if steps:
            figures["trainer.step"] = fmean(steps)
    return figures


def decoding(rows: Sequence[Decoded]) -> dict[str, float]:
    """Fit the seconds of decode steps to their number, the tokens they made and the prompts before them.

    Each row's error counts by how large it is beside the row, so that small batches count as much as large ones; then
    all is scaled to what the rows took together.
    """
    rows = [row for row in _warm(rows) if row.seconds > 0.0]
    if len(rows) < 3:
        return {}
    given = np.array([[row.steps, row.tokens, row.prompts] for row in rows], dtype=float)
    seconds = np.array([row.seconds for row in rows])
    found = np.array(_least_squares(given / seconds[:, None], np.ones(len(rows))))
    step, token, prompt = (found * seconds.sum() / max(1e-9, float((given @ found).sum()))).tolist()
    return {"engine.token": step + token, "engine.row": token, "engine.prompt": prompt}


def gradients(rows: Sequence[Commanded]) -> dict[str, float]:
    """Fit the seconds of gradients to their number and their tokens; of equal ones half is taken for each."""
    rows = _warm(rows)
    if len(rows) < 3:
        return {}
    tokens = np.array([row.tokens for row in rows], dtype=float)
    seconds = np.array([row.seconds for row in rows])
    if tokens.std() < 0.1 * tokens.mean():
        half = float(seconds.mean()) / 2.0
        return {"trainer.micro_batch": half, "trainer.token": half / max(1.0, float(tokens.mean()))}
    fixed, token = _least_squares(np.stack([np.ones_like(tokens), tokens], axis=1), seconds)
    return {"trainer.micro_batch": fixed, "trainer.token": token}


def _platform(spec: ExperimentSpec, rows: RunRows) -> dict[str, float]:
    found: dict[str, float] = {}
    if rows.hops:
        found["platform.hop"] = median(rows.hops)
        if (carry := carrying(rows.commanded, found["platform.hop"])) is not None:
            found["platform.carry"] = carry
    if rows.picked_up:
        found["platform.pick_up"] = median(rows.picked_up)
    if rows.starts:
        found["platform.start"] = fmean(rows.starts)
    if len(rows.settled) > QUEUED:
        found |= driver(rows.settled)
    if spec.environment.latency is None and (turn := turns(rows.played, rows.generated)) is not None:
        found["platform.turn"] = turn
    return found


def driver(settled: Sequence[Settled]) -> dict[str, float]:
    """Split what a settled group waits for the driver: on the way, and behind other facts.

    The way is what the luckiest tenth took. Behind it is a queue with one server: what passes between two facts of
    which the later one waited is the driver's work. Where hardly any waited there is only the way.
    """
    waits = sorted(row.handled - row.finished for row in settled)
    report = max(0.0, waits[len(waits) // 10])
    worked, before = [], 0.0
    for row in settled:
        if row.finished + report < before:
            worked.append(row.handled - before)
        before = max(before, row.handled)
    if len(worked) < QUEUED:
        return {"platform.report": max(0.0, median(waits))}
    return {"platform.report": report, "platform.decide": max(0.0, fmean(worked))}


def carrying(commanded: Sequence[Commanded], hop: float) -> float | None:
    """Return what a trainer's commands take beside its own work, each behind the one before it."""
    beside: list[float] = []
    for lease in {row.lease_id for row in commanded}:
        before = 0.0
        for row in sorted((r for r in commanded if r.lease_id == lease), key=lambda r: r.done):
            beside.append(row.done - max(row.created + hop, before) - row.seconds)
            before = row.done
    return max(0.0, fmean(_trimmed(beside))) if beside else None


def turns(played: Sequence[Played], generated: Sequence[tuple[float, float]]) -> float | None:
    """Return what the rollout workers take for a turn: a cohort's rollout without its generation, over its turns."""
    found = []
    for cohort in played[1:]:
        inside = sum(max(0.0, min(t1, cohort.ended) - max(t0, cohort.began)) for t0, t1 in generated)
        if cohort.turns:
            found.append(max(0.0, cohort.ended - cohort.began - inside) / cohort.turns)
    return median(found) if found else None


def _warm(rows: Sequence[Commanded] | Sequence[Decoded]) -> list:  # type: ignore[type-arg]
    """Leave the oldest rows out; the newest come first."""
    return list(rows[: len(rows) - int(WARM_SHARE * len(rows))])


def _trimmed(values: Iterable[float]) -> list[float]:
    ordered = sorted(values)
    cut = len(ordered) // 20
    return ordered[cut : len(ordered) - cut]


def _least_squares(given: np.ndarray, wanted: np.ndarray) -> list[float]:
    """Return the coefficients, none below 0, that come closest: of all subsets of columns the best legal one."""
    count = given.shape[1]
    best, least = [0.0] * count, float(wanted @ wanted)
    for size in range(1, count + 1):
        for columns in combinations(range(count), size):
            part = given[:, columns]
            found, *_ = np.linalg.lstsq(part, wanted, rcond=None)
            left = wanted - part @ found
            if (found >= 0.0).all() and float(left @ left) < least:
                least = float(left @ left)
                best = [0.0] * count
                for column, value in zip(columns, found, strict=True):
                    best[column] = float(value)
    return best
