"""The process group of one gang: collectives, orders of its leader, and the mesh that FSDP2 works on.

A trainer is in as many groups as it has shared policies, with other ranks in each, and the default group of
torch.distributed is one per process; so a group is made here from its parts and known to torch by its name alone.
gloo carries orders, states and figures, and on CPUs the shards; on CUDA devices NCCL carries the shards.

Invariants: collectives are called by all ranks in the same order, which the leader's orders give; a rank that is gone
ends every wait of the others, at once when its connections break, after `SILENT_S` at the latest; a closed group
serves nobody again.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import msgspec

from workers.training.errors import RefusalCode, TrainerRefusal
from workers.training.gangs.orders import Order
from workers.training.gangs.rendezvous import LOOK_S, Place

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

SILENT_S = 120.0
"""A rank that takes no part in what all do for this long counts as lost."""
_numbers = itertools.count(1)
"""Of this process's groups: torch finds them by a name."""
_MARKS = ("gloo", "nccl", "connection", "socket", "process group", "processgroup", "timed out")
"""What the words of errors of process groups have in common: most have no type of their own."""


class GroupLost(Exception):
    """A rank of the group is gone, or the group was closed."""


class RankGroup:
    def __init__(self, place: Place, rank: int, ranks: int, host: str, device: str, silent_s: float) -> None:
        """Connect to every other rank. `host` is the address that this rank is reached under."""
        self.rank = rank
        self.ranks = ranks
        self.device = device
        self._place = place
        self._name = f"gang-{next(_numbers)}"
        self._closed = False
        self._next = 0
        self._known = 0
        self._group = _made(place, rank, ranks, host, device, self._name, timedelta(seconds=silent_s))

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def closed(self) -> bool:
        return self._closed

    def mesh(self) -> "DeviceMesh":
        """Return the ranks as FSDP2 wants them."""
        from torch.distributed.device_mesh import DeviceMesh

        kind = self.device.partition(":")[0]
        mesh = DeviceMesh(kind, list(range(self.ranks)), _init_backend=False, _rank=self.rank)
        mesh._dim_group_names = [self._group.group_name]
        return mesh

    def order(self, order: Order) -> None:
        """Tell the other ranks what comes next; on these nothing, since they were told."""
        if not self.leads:
            return
        with self.together():
            body = msgspec.msgpack.encode(order)
            self._place.store.set(f"order/{self._next}", str(len(body)))
            self._next += 1
            self._broadcast(_bytes(body))

    def next_order(self) -> Order:
        """Wait for the leader's next order. Raises GroupLost when there will be none."""
        from torch.distributed import DistError, DistStoreError

        key = f"order/{self._next}"
        while not self._closed:
            try:
                self._place.store.wait([key], timedelta(seconds=LOOK_S))
            except DistStoreError:
                if self._place.over:
                    break
                continue
            except DistError as error:
                raise GroupLost("its leader is gone") from error
            length = int(self._place.store.get(key))
            self._next += 1
            body = _room(length)
            self._broadcast(body)
            return msgspec.msgpack.decode(body.numpy().tobytes(), type=Order)  # type: ignore[no-any-return]
        raise GroupLost("the gang has ended")

    def sum(self, figures: "Sequence[float]") -> list[float]:
        """Return the sums of every rank's figures, in double precision."""
        return self._reduced(figures, "SUM")

    def most(self, figures: "Sequence[float]") -> list[float]:
        """Return the largest of every rank's figures."""
        return self._reduced(figures, "MAX")

    def agree(self, well: bool) -> bool:
        """Tell whether all went well on every rank."""
        return self.most([0.0 if well else 1.0]) == [0.0]

    def scatter(self, parts: "Sequence[torch.Tensor] | None", length: int, dtype: "torch.dtype") -> "torch.Tensor":
        """Return this rank's part of what the leader has, on the host."""
        import torch
        from torch.distributed import ScatterOptions

        with self.together():
            own, options = torch.empty(length, dtype=dtype), ScatterOptions()
            options.rootRank = 0
            given = [[part.cpu() for part in parts]] if parts is not None else []
            self._group.scatter([own], given, options).wait()
        return own

    def gather(self, own: "torch.Tensor", length: int) -> "list[torch.Tensor] | None":
        """Return every rank's part on the leader's host, padded to `length`; None elsewhere."""
        import torch
        from torch.distributed import GatherOptions

        with self.together():
            padded, options = torch.zeros(length, dtype=own.dtype), GatherOptions()
            padded[: len(own)] = own.cpu()
            options.rootRank = 0
            all_parts = [[torch.empty_like(padded) for _ in range(self.ranks)]] if self.leads else []
            self._group.gather(all_parts, [padded], options).wait()
        return all_parts[0] if self.leads else None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Turn what a process group raises when a rank is gone into the refusal of that; the group is closed then."""
        if self._closed:
            raise TrainerRefusal(RefusalCode.RANK_LOST, "the policy's gang has ended")
        try:
            yield
        except RuntimeError as error:
            if not of_process_group(error):
                raise
            self.close()
            raise TrainerRefusal(RefusalCode.RANK_LOST, f"a rank of the policy's gang is gone: {error}") from error

    def close(self) -> None:
        """Leave: whoever waits for this rank learns it. Called again, it does nothing."""
        from torch._C._distributed_c10d import _unregister_process_group
        from torch.distributed.distributed_c10d import GroupName

        if self._closed:
            return
        self._closed = True
        self._place.leave()
        self._group.abort()
        _unregister_process_group(GroupName(self._name))

    def _broadcast(self, tensor: "torch.Tensor") -> None:
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([tensor], options).wait()

    def _reduced(self, figures: "Sequence[float]", how: str) -> list[float]:
        import torch
        from torch.distributed import AllreduceOptions, ReduceOp

        with self.together():
            tensor, options = torch.tensor(figures, dtype=torch.float64), AllreduceOptions()
            options.reduceOp = getattr(ReduceOp, how)
            self._group.allreduce([tensor], options).wait()
            self._forget()
        return [float(figure) for figure in tensor]

    def _forget(self) -> None:
        """All ranks have read every order by now: the store keeps none of them."""
        if self.leads:
            for number in range(self._known, self._next):
                self._place.store.delete_key(f"order/{number}")
            self._known = self._next


def of_process_group(error: RuntimeError) -> bool:
    """Tell whether an error says that another rank cannot be reached."""
    from torch.distributed import DistError

    words = str(error).lower()
    return isinstance(error, DistError) or any(mark in words for mark in _MARKS)


def _made(place: Place, rank: int, ranks: int, host: str, device: str, name: str, silent: timedelta) -> "ProcessGroup":
    """Connect all ranks; gloo for the host's memory and, on CUDA devices, NCCL for theirs."""
    import torch
    from torch._C._distributed_c10d import _register_process_group
    from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo
    from torch.distributed.distributed_c10d import GroupName

    kinds, own, makes = ProcessGroup.BackendType, PrefixStore("cpu", place.store), cast("Any", ProcessGroupGloo)
    options = makes._Options()
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = silent
    gloo = ProcessGroupGloo(own, rank, ranks, options)
    gloo._set_sequence_number_for_group()
    group = ProcessGroup(place.store, rank, ranks)
    group._set_default_backend(kinds.GLOO)
    group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
    if device.startswith("cuda"):
        from torch.distributed import ProcessGroupNCCL

        given = ProcessGroupNCCL.Options()
        given._timeout = silent
        nccl = ProcessGroupNCCL(PrefixStore("cuda", place.store), rank, ranks, given)
        nccl._set_sequence_number_for_group()
        group._set_default_backend(kinds.NCCL)
        group._register_backend(torch.device(device), kinds.NCCL, nccl)
    group._set_group_name(GroupName(name))
    _register_process_group(GroupName(name), group)
    return group


def _bytes(body: bytes) -> "torch.Tensor":
    import torch

    return torch.frombuffer(bytearray(body), dtype=torch.uint8)


def _room(length: int) -> "torch.Tensor":
    import torch

    return torch.empty(length, dtype=torch.uint8)
