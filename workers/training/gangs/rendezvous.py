"""Where ranks of gangs meet: a key-value store in each trainer, found through the registry.

Invariants: it listens on the one address that its child does; a gang's place in it is named by a key that only the
leader and the nodes of its ranks can make, one for each forming of a policy's gang, so that a rank that comes late to
an older one finds a closed place or nobody, and disturbs nothing. The traffic itself is not encrypted, as that of
process groups never is: hosts of one gang share a trusted network.
"""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from workers.training.errors import RefusalCode, TrainerRefusal

if TYPE_CHECKING:
    from torch.distributed import Store

CONNECT_S = 10.0
LOOK_S = 1.0
"""How often a rank that waits looks whether it is still wanted."""
_GO, _OVER = "go", "over"


class Rendezvous:
    """The store of a trainer that may lead gangs."""

    def __init__(self, host: str) -> None:
        """Bind a free port of `host`."""
        from torch.distributed import TCPStore

        with socket.create_server((host, 0)) as listening:
            self.port = int(listening.getsockname()[1])
            self._store = TCPStore(
                host, self.port, None, True, timedelta(seconds=CONNECT_S), wait_for_workers=False,
                master_listen_fd=os.dup(listening.fileno()),
            )  # fmt: skip

    def place(self, key: str) -> "Place":
        """Return the place of a gang that this trainer leads."""
        return Place(self._store, key)


def reach(leader: str, key: str) -> "Place":
    """Return a gang's place at another trainer. Raises TrainerRefusal when nobody answers there."""
    from torch.distributed import DistError, TCPStore

    host, _, port = leader.rpartition(":")
    try:
        store = TCPStore(host, int(port), None, False, timedelta(seconds=CONNECT_S), wait_for_workers=False)
        return Place(store, key)
    except DistError as error:
        raise TrainerRefusal(RefusalCode.GANG_INCOMPLETE, f"no rendezvous at {leader}: {error}") from error


class Place:
    """One gang's part of a store, and the handshake before its process group is made."""

    def __init__(self, store: "Store", key: str) -> None:
        from torch.distributed import PrefixStore

        self.store = PrefixStore(key, store)

    @property
    def over(self) -> bool:
        """Tell whether this forming of the gang was given up or has ended."""
        return self.store.check([_OVER])

    def leave(self) -> None:
        """End this forming of the gang, if its leader lives; who waits or comes later learns it."""
        from torch.distributed import DistError

        with suppress(DistError):
            self.store.set(_OVER, "1")
            self.store.set(_GO, "1")

    def await_ranks(self, ranks: int, seconds: float) -> None:
        """Wait for every other rank, then let all go on. Raises TrainerRefusal, after which the place is closed."""
        from torch.distributed import DistStoreError

        expected = [f"here/{rank}" for rank in range(1, ranks)]
        try:
            if not self.over:
                self.store.wait(expected, timedelta(seconds=seconds))
                self.store.set(_GO, "1")
                return
            detail = "this attempt to form the gang has ended"
        except DistStoreError:
            missing = [name.removeprefix("here/") for name in expected if not self.store.check([name])]
            detail = f"rank {', '.join(missing)} of {ranks} did not come within {seconds:g} s"
            self.leave()
        raise TrainerRefusal(RefusalCode.GANG_INCOMPLETE, detail)

    def arrive(self, rank: int) -> None:
        """Say that a rank is there. Raises TrainerRefusal when the place is closed."""
        from torch.distributed import DistError

        try:
            if self.over:
                raise TrainerRefusal(RefusalCode.GANG_INCOMPLETE, "this attempt to form the gang has ended")
            self.store.set(f"here/{rank}", "1")
        except DistError as error:
            raise TrainerRefusal(RefusalCode.GANG_INCOMPLETE, f"the leader is gone: {error}") from error

    def await_go(self, seconds: float, wanted: Callable[[], bool]) -> bool:
        """Wait until all ranks are there; False when they were not in time, the leader is gone, or it is wanted no
        more. It looks again and again: whoever waits in a store keeps other threads from it."""
        from torch.distributed import DistError, DistStoreError

        until = time.monotonic() + seconds
        while wanted() and time.monotonic() < until:
            try:
                self.store.wait([_GO], timedelta(seconds=LOOK_S))
                return not self.over
            except DistStoreError:
                continue
            except DistError:
                return False
        return False
