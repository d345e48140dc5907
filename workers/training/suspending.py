"""Policies that left the device: a learner's whole state in the state plane, and back bit for bit.

Invariants: a suspended policy goes on as if nothing had been, its accumulator, the set of micro-batches in it and their
figures included; it lives as long as this trainer's process, since its accumulator does. The memory that a learner
computed in is kept for the next policy of equal settings, so that two that alternate touch no fresh memory.
"""

import atexit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import psutil

from workers.training.learner import Learner
from workers.transfer import LocalTier
from workers.transfer.plane import DiskShelter, OwnMemory, Plane, Shelter, Ticket
from workers.transfer.shared import MEMORY, SharedMemory

if TYPE_CHECKING:
    import torch

MEMORY_SHARE = 0.5
"""Of the memory file system's size, for the suspended states of a home; of the machine's memory, for one process."""

Rest = TypeVar("Rest")
Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Suspended(Generic[Rest]):
    """A policy whose learner lies in the state plane."""

    ticket: Ticket
    shapes: Shapes
    rest: Rest
    """What its trainer holds of it besides."""


class Suspension(Generic[Rest]):
    """The suspended policies of one trainer."""

    def __init__(self, plane: Callable[[], Plane]) -> None:
        """The plane is made when the first policy is suspended."""
        self._make_plane = plane
        self._plane: Plane | None = None
        self._suspended: dict[str, Suspended[Rest]] = {}
        self._idle: dict[str, Learner] = {}
        """Kind -> a learner without a policy: one at most."""

    def get(self, policy: str) -> Suspended[Rest] | None:
        return self._suspended.get(policy)

    def suspend(self, policy: str, learner: Learner, kind: str, rest: Rest) -> Suspended[Rest]:
        """Take a policy's learner off the device. Raises StateFull, after which nothing has changed.

        Learners of one kind can take each other's place; of none, nobody's.
        """
        with learner.setting_aside():
            ticket = self._there().suspend(memory_of(learner), learner.marks())
        self._suspended[policy] = Suspended(ticket, learner.shapes, rest)
        self._idle = {kind: learner} if ticket.copied and kind else {}
        return self._suspended[policy]

    def resume(self, policy: str, kind: str, make: "Callable[[dict[str, torch.Tensor]], Learner]") -> Learner:
        """Bring a policy back into memory that lies idle, or into a new learner of weights that are all zero.

        Raises StateError. Either way the policy is suspended no more.
        """
        suspended = self._suspended.pop(policy)
        try:
            idle = self._idle.pop(kind, None)
            self.give_back()
            learner = idle or make(_nothing(suspended.shapes))
            with learner.coming_back():
                own = memory_of(learner)
                on_host = all(tensor.device.type == "cpu" for tensor in own.values())
                tensors, marks = self._there().resume(suspended.ticket, own if on_host else None)
                if not on_host:
                    for name, tensor in own.items():
                        tensor.copy_(tensors[name])
                learner.go_on(marks)
        finally:
            self._there().release(suspended.ticket)
        return learner

    def give_back(self) -> None:
        """Keep no memory for a policy to come."""
        self._idle.clear()

    def forget(self, policy: str) -> None:
        """Let a suspended policy go, if there is one, and what lies idle."""
        self.give_back()
        suspended = self._suspended.pop(policy, None)
        if suspended is not None:
            self._there().release(suspended.ticket)

    def _there(self) -> Plane:
        self._plane = self._plane or self._make_plane()
        return self._plane


def memory_of(learner: Learner) -> "dict[str, torch.Tensor]":
    """Return all memory of a learner that a bit-equal continuation needs."""
    parameters = learner.parameters
    own = {
        "master": parameters.master,
        "first": learner.optimizer.first,
        "second": learner.optimizer.second,
        "accumulated": learner.accumulator.total,
    }
    return own if parameters.compute is parameters.master else {**own, "compute": parameters.compute}


def _nothing(shapes: Shapes) -> "dict[str, torch.Tensor]":
    """Return tensors that have shapes and take no memory."""
    import torch

    return {name: torch.zeros(()).expand(shape) for name, shape in shapes.items()}


def plane_of(home: str, owner: str) -> Plane:
    """Return a plane of suspended states; what an earlier life of its owner left on disk is let go."""
    disk = LocalTier(home, owner)
    disk.collect((), 0.0)
    shelters: list[Shelter] = [OwnMemory(int(MEMORY_SHARE * psutil.virtual_memory().total)), DiskShelter(disk)]
    if MEMORY.is_dir():
        memory = SharedMemory(home, int(MEMORY_SHARE * psutil.disk_usage(str(MEMORY)).total), MEMORY)
        atexit.register(memory.close)  # after a kill the node gives it back
        shelters.insert(0, memory)
    return Plane(disk, shelters)
