"""Devices chosen anew for a run that goes on: among those that it holds, by the rates that it measured itself.

Only numbers of devices may differ - of engines and trainers, in the pools where the run holds some - and never more
than it holds. Its own devices are simulated beside the chosen ones with the same draws, so what is told is a share of
its own time per trained token. The lower end of that share takes what the simulation does not explain of the measured
time as what no change shortens (`prediction.whatif`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from flexmarl.contracts.base import Record
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.choosing.choosing import asked_row, search
from flexmarl.simulator.choosing.explaining import changes_of, told
from flexmarl.simulator.choosing.objectives import DeviceObjective, KnownSpeeds, PoolStock
from flexmarl.simulator.choosing.setups import DeviceQuestion, refusals
from flexmarl.simulator.prediction.profile import Profile
from flexmarl.simulator.prediction.splitting import Change
from flexmarl.simulator.prediction.whatif import careful_share


class Rechosen(Record):
    """The best setting of the devices that a run holds, and its own one beside it."""

    own_step_s: float
    """Of the run's own devices, as simulated by the measured rates."""
    step_s: float
    """Of the chosen ones."""
    rollout_devices: int
    training_devices: int
    own_rollout_devices: int
    own_training_devices: int
    gain: float
    """Share of the time per trained token that they save."""
    gain_least: float
    starts_s: float
    """Until the first step begins on them."""
    why: tuple[str, ...]
    changes: tuple[Change, ...]
    """Empty: no other devices are better."""
    looked_at: int
    simulated: int
    stopped: bool

    @property
    def direction(self) -> int:
        """Return 1 where more is for rollout, -1 where less is; of training the other way round."""
        more = self.rollout_devices - self.own_rollout_devices or self.own_training_devices - self.training_devices
        return (more > 0) - (more < 0)


class NotRechosen(Record):
    """Why nothing can be chosen anew."""

    why: str


def rechoose(
    spec: ExperimentSpec,
    profile: Profile,
    stock: tuple[PoolStock, ...],
    actual_step_s: float,
    spare: Callable[[], bool] = lambda: True,
) -> Rechosen | NotRechosen:
    """Choose devices among those that a run holds; `spare` is asked before each simulation but the first."""
    kinds = {pool.name: pool.kind for pool in stock}
    own = spec.resources
    trained = own.training_pool if spec.own_trainers else own.rollout_pool
    if not {own.rollout_pool, trained} <= kinds.keys():
        return NotRechosen(why="The run does not hold devices of each of its pools now.")
    known = KnownSpeeds(
        engine=kinds[own.rollout_pool], each=own.engine_devices, trainer=kinds[trained], profile=profile
    )
    question = DeviceQuestion(spec, DeviceObjective(objective="fastest"), stock, (known,))
    if refused := refusals(question):
        return NotRechosen(why=refused[0].detail)
    made = search(question, spare=spare)
    here, best = asked_row(made), made.best()
    before = None if here is None else made.reports.get(here)
    if here is None or before is None or best is None:
        return NotRechosen(why="The run cannot be simulated on the devices that it holds.")
    after = made.reports.get(best) or before
    best = best if made.reports.get(best) is not None else here
    gain = 1.0 - before.tokens_s / after.tokens_s if best != here else 0.0
    numbers = [(int(made.table.engines[row]), int(made.table.trainers[row])) for row in (here, best)]
    (own_engines, own_training), (engines, training) = numbers
    plan = told(made, spare=lambda: False).best
    return Rechosen(
        own_step_s=before.step_s,
        step_s=after.step_s,
        rollout_devices=engines * own.engine_devices,
        training_devices=training,
        own_rollout_devices=own_engines * own.engine_devices,
        own_training_devices=own_training,
        gain=gain,
        gain_least=min(gain, careful_share(gain * before.step_s, before.step_s, actual_step_s)),
        starts_s=max(0.0, after.began - after.step_s),
        why=() if plan is None or best == here else plan.why,
        changes=tuple(changes_of(made, best)) if best != here else (),
        looked_at=len(made.table.closed_s),
        simulated=made.made,
        stopped=made.stopped,
    )


def setting_of(spec: ExperimentSpec) -> str:
    """Name the setting that may be chosen anew; equal names are equal settings."""
    own = spec.resources
    rollout, training = (
        f"{own.most_rollout_devices} of {own.rollout_pool}",
        f"{own.training_devices} of {own.training_pool}",
    )
    return f"rollout on {rollout}, training on {training}"


def setting_with(spec: ExperimentSpec, patch: Mapping[str, Any]) -> str:
    """Name the setting of a run with a patch of its specification."""
    resources = spec.resources.model_dump(mode="json") | dict(patch.get("resources", {}))
    changed = spec.model_copy(update={"resources": type(spec.resources).model_validate(resources)})
    return setting_of(changed)
