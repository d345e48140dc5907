"""Policies that left the device: a learner's whole state in the state plane, and back bit for bit.

Invariants: a suspended policy goes on as if nothing had been, its accumulator, the set of micro-batches in it and their
figures included, in this trainer or in another one of its run; it lives as long as the process that suspended it. The
memory that a learner computed in is kept for the next policy of equal settings, so that two that alternate touch no
fresh memory.
"""

import atexit
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.learner import Learner
from workers.transfer import LocalTier
from workers.transfer.plane import DiskShelter, OwnMemory, Plane, Shelter, Ticket
from workers.transfer.shared import MEMORY, SharedMemory

if TYPE_CHECKING:
    import torch

MEMORY_SHARE = 0.5
"""Of the memory file system's size, for the suspended states of a home; of the machine's memory, for one process."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is said of a policy that this trainer suspended."""

    ticket: str
    accumulator: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Suspended:
    """A policy that came back."""

    learner: Learner
    rest: dict[str, Any]
    """What its trainer held of it besides."""
    bytes: int


class Suspension:
    """Policies on their way out of a trainer and into it."""

    def __init__(self, plane: Callable[[], Plane]) -> None:
        """The plane is made when the first policy is suspended or brought back."""
        self._make_plane = plane
        self._plane: Plane | None = None
        self._left: dict[str, Left] = {}
        self._idle: dict[str, Learner] = {}
        """Kind -> a learner without a policy: one at most."""
        self._vacated = 0
        """Number of the last command by which the device was given up."""

    def get(self, policy: str) -> Left | None:
        """Return what was said when a policy was suspended here last."""
        return self._left.get(policy)

    def suspend(self, policy: str, learner: Learner, kind: str, rest: Mapping[str, Any], reach: str) -> Left:
        """Take a policy's learner off the device. Raises StateFull, after which nothing has changed.

        Learners of one kind can take each other's place; of none, nobody's. `rest` comes back with it, as JSON can say.
        """
        began = time.time()
        self.forget(policy, idle=False)
        marks = {"learner": learner.marks(), "shapes": learner.shapes, "rest": dict(rest)}
        ticket = self._there().suspend(learner.memory(), marks, reach)
        self._idle = {kind: learner} if ticket.copied and kind else {}
        told = msgspec.json.encode(ticket).decode()
        self._left[policy] = Left(told, learner.accumulator.epoch, ticket.bytes, time.time() - began)
        return self._left[policy]

    def resume(self, told: str, kind: str, make: "Callable[[dict[str, torch.Tensor]], Learner]") -> Suspended:
        """Bring a policy back into memory that lies idle, or into a new learner of weights that are all zero.

        Raises StateError. Either way the policy is suspended no more.
        """
        ticket, plane = msgspec.json.decode(told, type=Ticket), self._there()
        try:
            marks = plane.marks(ticket)
            idle = self._idle.pop(kind, None)
            self.give_back()
            learner = idle or make(_nothing(marks["shapes"]))
            tensors, _ = plane.resume(ticket, learner.memory() if learner.on_host else None)
            if not learner.on_host:
                learner.refill(tensors)
            learner.go_on(marks["learner"])
        finally:
            plane.release(ticket)
        return Suspended(learner, marks["rest"], ticket.bytes)

    def refuse_older(self, order: int) -> None:
        """Raise TrainerRefusal when a command of before the device was given up comes late."""
        if 0 < order < self._vacated:
            raise TrainerRefusal(RefusalCode.SUPERSEDED, "the device was released after this request")

    def vacate(self, order: int) -> None:
        """Keep nothing on the device from now on; what lies suspended elsewhere stays."""
        self._vacated = max(self._vacated, order)
        self.give_back()

    def give_back(self) -> None:
        """Keep no memory for a policy to come."""
        self._idle.clear()

    def forget(self, policy: str, idle: bool = True) -> None:
        """Let go of what is suspended of a policy, if anything still is, and of memory that lies idle."""
        if idle:
            self.give_back()
        left = self._left.pop(policy, None)
        if left is not None:
            self._there().release(msgspec.json.decode(left.ticket, type=Ticket))

    def _there(self) -> Plane:
        self._plane = self._plane or self._make_plane()
        return self._plane


def _nothing(shapes: Mapping[str, list[int]]) -> "dict[str, torch.Tensor]":
    """Return tensors that have shapes and take no memory."""
    import torch

    return {name: torch.zeros(()).expand(shape) for name, shape in shapes.items()}


def owner_of(run_id: int, incarnation: str) -> str:
    """Name the owner of what a trainer suspends to disk: the same in all lives of its lease."""
    return f"run-{run_id}-suspended-{incarnation.partition('.')[0]}"


def plane_of(home: str, run_id: int, incarnation: str) -> Plane:
    """Return the plane of a trainer's suspended states."""
    disk = DiskShelter(home, owner_of(run_id, incarnation))
    shelters: list[Shelter] = [OwnMemory(int(MEMORY_SHARE * psutil.virtual_memory().total)), disk]
    if MEMORY.is_dir():
        memory = SharedMemory(home, int(MEMORY_SHARE * psutil.disk_usage(str(MEMORY)).total), MEMORY)
        atexit.register(memory.close)  # after a kill the node gives it back
        shelters.insert(0, memory)
    return Plane(LocalTier(home, f"run-{run_id}-suspended"), shelters)
