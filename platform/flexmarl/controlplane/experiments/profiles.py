"""The profile of an experiment: what ended runs tell of its models, its episodes and the platform.

A run is read once, when a plan first asks; what it told is kept. Of models the newest runs count that had the same
model on the same kind of device under the same engine, those in the same environment before others: how long texts are
and what may be said decide on what a token takes; of episodes those of the same environment; of the platform
those whose steps were about as large, or else any. Runs that were made to be measured count where no other tells.
What no run tells is declared by the specification or has a default.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import log2
from statistics import median
from typing import TypeVar

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments.models import MeasuredRun
from flexmarl.simulator.choosing.objectives import KnownSpeeds
from flexmarl.simulator.prediction import fitting
from flexmarl.simulator.prediction.calibrating import calibrated
from flexmarl.simulator.prediction.estimates import Gradients, line
from flexmarl.simulator.prediction.fitting import RunPace
from flexmarl.simulator.prediction.profile import (
    OF_A_MODEL,
    OF_A_ROLE,
    OF_THE_PLATFORM,
    Profile,
    ProfileFigure,
    complete,
)
from flexmarl.store.reads import timings

T = TypeVar("T")
Told = Sequence[tuple[RunPace, T]]
"""What runs told of one figure, newest first."""

LOOKED_AT = 40
"""Newest ended runs that are looked at."""
READ_AT_ONCE = 3
"""Runs that one plan reads for the first time, at most."""
COUNTED = 5
"""Newest fitting runs that a figure is made of."""
TRIMMED = 4
"""Of so many runs the extremes are left out of a range: one of them may have met a busy machine."""
ALONE, TOGETHER = 0.15, 0.05
"""How far a figure may lie beyond what one run told, and beyond what several told."""
WIDER = 0.625
"""Share of the time that engines of twice the devices take, where nobody measured them: 80 % of what is ideal."""
ALIKE = 2.0
"""Steps of so many times more or fewer episodes load the platform alike."""


def profile_of(spec: ExperimentSpec, devices: dict[str, str]) -> Profile:
    """Return what is known of an experiment on kinds of devices (use -> kind and name)."""
    on = {use: fitting.device_key(what) for use, what in devices.items()}
    engine, trainer = (
        f"{what} on {on[use]}" for what, use in ((fitting.engine_key(spec), "engine"), ("torch", "trainer"))
    )
    return _merged(spec, engine, trainer, measured())


def profiles_of(spec: ExperimentSpec, wanted: Iterable[tuple[str, int, str]]) -> Iterator[KnownSpeeds]:
    """Return what is known of an experiment on engines of so many devices of one kind, with trainers of another one.

    Engines of more devices than were measured are derived from those of half, a quarter, ... as many of the same kind:
    everything takes `WIDER` of the time per doubling, at the low end half of it.
    """
    runs = measured()
    for engine, each, trainer in wanted:
        profile, derived = _sized(spec, runs, (engine, each, trainer))
        yield KnownSpeeds(engine=engine, each=each, trainer=trainer, profile=profile, derived_from=derived)


def _sized(spec: ExperimentSpec, runs: Sequence[RunPace], wanted: tuple[str, int, str]) -> tuple[Profile, int | None]:
    """Return a profile, and from how many devices its engines are derived; None: they are not."""
    engine, each, trainer = wanted
    at = each
    while True:
        own = spec.model_copy(update={"resources": spec.resources.model_copy(update={"engine_devices": at})})
        on = (fitting.device_key(kind) for kind in (engine, trainer))
        found = _merged(own, f"{fitting.engine_key(own)} on {next(on)}", f"torch on {next(on)}", runs)
        known = any(f.source != "default" for n, f in found.figures.items() if n.startswith("engine.token "))
        if at == each and (known or each == 1):
            return found, None
        if known or at == 1:
            return _faster(found, log2(each / at)), at
        at //= 2


def _faster(profile: Profile, doublings: float) -> Profile:
    """Return a profile whose engines have so many times twice the devices."""
    figures = {
        name: f.model_copy(update={"low": f.low * 0.5**doublings, "likely": f.likely * WIDER**doublings})
        if name.startswith("engine.")
        else f
        for name, f in profile.figures.items()
    }
    return profile.model_copy(update={"figures": figures})


def measured() -> list[RunPace]:
    """Return the paces of the newest ended runs, newest first; reads those that nobody has read."""
    conn = store_connection()
    ended = timings.ended(conn, LOOKED_AT)
    rows = MeasuredRun.objects.filter(run_no__in=[no for no, _ in ended], pace__version=fitting.VERSION)
    known = {row.run_no: RunPace.model_validate(row.pace) for row in rows}
    unread = [run for run in ended if run[0] not in known][:READ_AT_ONCE]
    for no, document in unread:
        spec, told = ExperimentSpec.model_validate(document), timings.read(conn, no)
        known[no] = calibrated(spec, fitting.pace_of(spec, told, timings.device_kinds(conn, no)), told)
        MeasuredRun.objects.update_or_create(run_no=no, defaults={"pace": known[no].model_dump(mode="json")})
    return [known[no] for no, _ in ended if no in known]


def _merged(spec: ExperimentSpec, engine: str, trainer: str, runs: Sequence[RunPace]) -> Profile:
    figures: dict[str, ProfileFigure] = {}
    parameters: dict[str, int] = {}
    played = [r for r in runs if r.environment == fitting.environment_key(spec)]
    for policy in spec.policies:
        for name in OF_A_MODEL:
            key = (fitting.making_key if name == "trainer.create" else fitting.model_key)(spec, policy)
            _first(_put, figures, f"{name} {policy}", [
                [(r, r.models.get(key, {}).get(name)) for r in some if _same(r, name, engine, trainer)]
                for some in (played, runs)
            ])  # fmt: skip
        key = fitting.model_key(spec, policy)
        _first(_put_gradients, figures, policy, [
            [(r, r.gradients.get(key, [])) for r in some if r.trainer == trainer] for some in (played, runs)
        ])  # fmt: skip
        if sized := [r.parameters[key] for r in runs if key in r.parameters]:
            parameters[policy] = sized[0]
    for role in spec.agents:
        for name in OF_A_ROLE:
            _put(figures, f"{name} {role}", [(r, r.roles.get(role, {}).get(name)) for r in played])
    size = spec.batch.tasks_per_step * spec.batch.episodes_per_task
    alike = [r for r in runs if size / ALIKE <= r.episodes <= size * ALIKE and r.engine == engine]
    same = [r for r in alike if r in played]
    for name in OF_THE_PLATFORM:
        _first(_put, figures, name, [[(r, r.platform.get(name)) for r in some] for some in (same, alike, runs)])
    lasts = next((r.lasts for r in played if r.lasts), None)
    cores = next((r.cores for r in runs if r.engine == engine and r.trainer == trainer), 0)
    return Profile(figures=complete(spec, figures), lasts=lasts, parameters=parameters, cores=cores)


def _same(run: RunPace, name: str, engine: str, trainer: str) -> bool:
    """Tell whether a run had the device that a figure of a model is about."""
    return run.engine == engine if name.startswith("engine.") else run.trainer == trainer


def _first(
    put: Callable[[dict[str, ProfileFigure], str, Told[T]], bool],
    figures: dict[str, ProfileFigure],
    name: str,
    told: Sequence[Told[T]],
) -> None:
    """Make figures of the first runs that tell any."""
    for some in told:
        if put(figures, name, some):
            return


def _put_gradients(figures: dict[str, ProfileFigure], policy: str, told: Told[Sequence[Gradients]]) -> bool:
    """Make the figures of gradients: one line through those of all runs, and how far single runs are off it.

    The newest that was made to be measured counts among them: it cuts small and large ones, runs often one size alone.
    Return False when none told anything.
    """
    every = [(run, own) for run, own in told if own]
    measured = [one for one in every if one[0].source == "profile"]
    found = [one for one in every if one[0].source == "runs"][:COUNTED] + measured[:1]
    fitted = line([one for _, own in found for one in own])
    if not fitted:
        return False
    fixed, token = fitted["trainer.micro_batch"], fitted["trainer.token"]
    off = [
        sum(one.count * one.seconds for one in own) / sum(one.count * (fixed + token * one.tokens) for one in own)
        for _, own in found
    ]
    for name, value in fitted.items():
        _put(figures, f"{name} {policy}", [(run, value * times) for (run, _), times in zip(found, off, strict=True)])
    return True


def _put(figures: dict[str, ProfileFigure], name: str, told: Told[float | None]) -> bool:
    """Make a figure of what runs told, newest first. Return False when none told anything."""
    every = [(run, value) for run, value in told if value is not None]
    found = ([one for one in every if one[0].source == "runs"] or every)[:COUNTED]
    if not found:
        return False
    values = sorted(value for _, value in found)
    spread = values[1:-1] if len(values) >= TRIMMED else values
    beyond = ALONE if len(values) == 1 else TOGETHER
    count, source = f"{len(values)} run{'s' * (len(values) > 1)}", found[0][0].source
    figures[name] = ProfileFigure(
        low=spread[0] * (1.0 - beyond), likely=median(values), high=spread[-1] * (1.0 + beyond), source=source,
        of=count,
    )  # fmt: skip
    return True
