"""Contents by digest through the control plane, which asks the nodes that it reaches."""

import http.client

from workers.door.address import DoorAddress
from workers.transfer.peer import Peer


class DoorPeer(Peer):
    """What the other nodes hold, as one `Source`: chunks go on where they broke off, and nothing is trusted."""

    def __init__(self, door: DoorAddress) -> None:
        self.name = "the control plane"
        self._door = door
        self._headers = dict(door.headers)

    def _connection(self) -> http.client.HTTPConnection:
        return self._door.connect()

    def _path(self, path: str) -> str:
        return self._door.path(f"/nodes{path.removeprefix('/v1')}")
