"""Who has a device that an engine and a trainer share: decided from what is to be done. Pure.

Invariants: an engine is given its memory only while the trainer beside it keeps nothing or is dead, and a trainer is
given a policy only while the engine beside it sleeps or is dead; what is on its way counts for whoever it is on its way
to, and a child that nobody asked yet is taken to hold what it may have been given by somebody nobody remembers. What a
dead child was asked to take may be with its successor, of which nothing was heard yet. The devices of a run turn
together, and only when the side that has them has nothing left to do and the other has: so a reply is never cut short,
and nobody waits for ever. Play ends by itself, since a cohort is finite and no new one begins beyond the lag bound
without a step; training ends by itself, since nothing is cut while nothing plays.
"""

from dataclasses import dataclass
from typing import Literal

from flexmarl.orchestrator.state.fleet import Side


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """What is known of a device with an engine and a trainer."""

    engine: int
    """Its lease, 0 where there is none at the moment."""
    trainer: int
    answers: bool
    """A child of the engine's lease lives."""
    asleep: bool
    turning: bool
    """It is asked to fall asleep or to wake."""
    loading: bool
    """It is asked to load weights."""
    residents: tuple[str, ...] = ()
    """Policies that the trainer holds, or is asked to hold or to give up."""
    manned: bool = True
    """A child of the trainer's lease lives."""
    vacant: bool = False
    """It said that it keeps nothing, and was asked to hold nothing since."""
    leaving: bool = False
    """It is asked to keep nothing."""
    engine_awaits_successor: bool = False
    """The engine died while it was awake, and its successor has not been heard of."""
    trainer_awaits_successor: bool = False
    """The trainer died while it kept something or might, and its successor has not been heard of."""


def whose(now: Side, *, plays: bool, trains: bool) -> Side:
    """Say who is to have the devices. `plays`: an episode is not over; `trains`: there is something to do for trainers.

    Engines give them up once nothing plays. Trainers give them up even when nothing is to be played: what they made is
    published on engines that are awake.
    """
    if now == "engines":
        return "trainers" if trains and not plays else "engines"
    return "trainers" if trains else "engines"


def lent(device: SharedDevice) -> bool:
    """Tell whether a trainer may be given policies: its device's engine holds nothing and cannot come by anything."""
    if device.leaving or device.engine_awaits_successor:
        return False
    return not device.answers or (device.asleep and not device.turning)


def cleared(device: SharedDevice) -> bool:
    """Tell whether nothing of the trainer is on the device, and nothing on its way there."""
    return not device.residents and not device.trainer_awaits_successor and (not device.manned or device.vacant)


def may_load(side: Side, device: SharedDevice) -> bool:
    """Tell whether an engine may be given weights."""
    awake = device.answers and not device.asleep and not device.turning
    return side == "engines" and awake and cleared(device)


def turn(side: Side, device: SharedDevice) -> Literal["sleep", "vacate", "wake"] | None:
    """Say what is to be asked for so that a device comes to whom it is to have, None: nothing now."""
    idle = device.answers and not device.turning
    if side == "trainers":
        return "sleep" if idle and not device.asleep and not device.loading else None
    if cleared(device):
        return "wake" if idle and device.asleep else None
    return "vacate" if device.manned and not device.residents and not device.leaving else None
