"""The address of a control plane, as a node with a token knows it."""

import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import SplitResult, urlsplit

from workers.door.waits import Waits

CONNECT_S = 5.0


@cache
def _trusted() -> ssl.SSLContext:
    """Return whose certificates are believed: read once, since that takes longer than a connection."""
    return ssl.create_default_context()


@dataclass(frozen=True, slots=True)
class DoorAddress:
    """Where the control plane answers, and as whom it is asked."""

    url: str
    token: str
    told_by: str = "FLEXMARL_NODE_TOKEN"
    """The setting or file that the token is from, for what is said of it."""
    waits: Waits = field(default_factory=Waits, compare=False, repr=False)
    """Of all that asks there."""

    def connect(self) -> http.client.HTTPConnection:
        """Open a connection; its first request may take longer to be answered than to be sent."""
        place = self._place
        if place.scheme == "https":
            return http.client.HTTPSConnection(place.netloc, timeout=CONNECT_S, context=_trusted())
        return http.client.HTTPConnection(place.netloc, timeout=CONNECT_S)

    def path(self, path: str) -> str:
        """Return a path of the control plane below the base that it is reached under."""
        return f"{self._place.path.rstrip('/')}{path}"

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def _place(self) -> SplitResult:
        return urlsplit(self.url)
