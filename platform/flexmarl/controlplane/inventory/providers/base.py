"""What every provider of hosts can do: say what it would be asked for, ask, look, and cancel.

A provider keeps nothing: rows are the truth, and a job is found again by its name. The same four calls fit a placement
group of a cluster of actors or a job of a container scheduler.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from uuid import UUID

HostState = Literal["pending", "running", "ending", "ended", "failed"]


@dataclass(frozen=True, slots=True)
class HostRequest:
    """A host that is wanted."""

    id: UUID
    name: str
    """Of the job at the provider."""
    node: str
    pool: str
    options: Mapping[str, Any]
    """Of the pool when the host was asked for."""
    native: str = ""
    """The provider's name of the job, where it was noted."""
    at_work: bool = False
    """Its host has owned the job's row."""
    unwanted: bool = False
    """It is to be cancelled."""
    token: str = field(default="", repr=False)
    """Node token of the host, where it has one and is to be submitted."""

    @property
    def has_token(self) -> bool:
        """Its host reaches the installation with a node token, and gets none of its secrets."""
        return self.options.get("access") == "node_token"


@dataclass(frozen=True, slots=True)
class HostSubmission:
    """What a provider is asked for one host, for people to read. It holds no secret."""

    command: str
    script: str
    settings_file: str
    """Where the secrets of the hosts lie; empty: they get none."""
    notices: tuple[str, ...] = ()
    """What will keep the host from working as far as it can be known now."""
    offers: tuple[str, ...] = ()
    """What the provider has now, a line for each of its hosts; empty where it does not say."""


@dataclass(frozen=True, slots=True)
class HostSighting:
    """A job as its provider knows it. Times in seconds since the epoch."""

    native: str
    state: HostState
    """`ending`: its processes are being ended, and some may still be there."""
    reason: str
    """In the provider's words."""
    place: str = ""
    started_at: float | None = None
    ends_at: float | None = None
    """When it ends, whatever runs there."""
    ends_why: str = ""
    """Why it ends then; empty: its time limit."""


class ProviderRefused(Exception):
    """The provider takes no such job; nothing was begun."""

    def __init__(self, words: str, next_step: str) -> None:
        super().__init__(words)
        self.words, self.next_step = words, next_step


class ProviderSilent(Exception):
    """The provider does not answer: what was asked of it may have happened or not."""

    def __init__(self, words: str, next_step: str = "") -> None:
        super().__init__(words)
        self.next_step = next_step


class HostProvider(Protocol):
    """A source of hosts."""

    def propose(self, request: HostRequest) -> HostSubmission:
        """Say what would be submitted; does nothing."""
        ...

    def submit(self, request: HostRequest) -> str:
        """Submit a job and return the provider's name of it. Raises ProviderRefused, ProviderSilent."""
        ...

    def look(self, requests: Collection[HostRequest]) -> dict[str, list[HostSighting]]:
        """Return the jobs that the provider knows by their names, the oldest first. Raises ProviderSilent."""
        ...

    def cancel(self, native: str) -> None:
        """End a job, or withdraw it; one that has ended is left as it is. Raises ProviderSilent."""
        ...
