"""Who acts: the one argument every action takes first."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from flexmarl.controlplane.common.problems import PermissionDenied
from flexmarl.controlplane.common.scopes import Scope


@dataclass(frozen=True, slots=True)
class Actor:
    """A caller with what they may do. Actions check it; views only build it."""

    user_id: UUID | None
    name: str
    scopes: frozenset[Scope]
    request_id: str = ""

    @classmethod
    def system(cls, name: str = "system") -> Self:
        """Return the actor of the platform itself: set-up commands, housekeeping."""
        return cls(None, name, frozenset(Scope))

    def may(self, scope: Scope) -> bool:
        """Say whether the caller has a scope."""
        return scope in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise PermissionDenied when the caller lacks a scope, naming it."""
        if scope not in self.scopes:
            raise PermissionDenied(f"This needs the scope {scope}.", extra={"required_scopes": [str(scope)]})

    def require_any(self, scopes: Iterable[Scope]) -> None:
        """Raise PermissionDenied when the caller has none of the scopes."""
        wanted = list(scopes)
        if not self.scopes.intersection(wanted):
            names = [str(scope) for scope in wanted]
            raise PermissionDenied(
                f"This needs one of the scopes {', '.join(names)}.", extra={"required_scopes": names}
            )
