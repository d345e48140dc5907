"""Who acts: the one argument every action takes first."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self
from uuid import UUID

from flexmarl.controlplane.common.problems import PermissionDenied, Unauthenticated
from flexmarl.controlplane.common.scopes import OF_PROJECTS, Scope


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """What a token takes from its owner besides scopes. A token made through it gets no further than it."""

    projects: frozenset[str] = frozenset()
    """Empty: all projects of the owner."""
    networks: tuple[str, ...] = ()
    """Address ranges it may be used from; empty: all."""
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Actor:
    """A caller with what they may do. Actions check it; views only build it.

    A scope is held everywhere or in single projects. Asked without a project, the answer is "somewhere": right for
    what belongs to no project, and as a first look at a view; actions and reads then ask with the project.
    """

    user_id: UUID | None
    name: str
    everywhere: frozenset[Scope]
    request_id: str = ""
    projects: Mapping[str, frozenset[Scope]] = field(default_factory=dict)
    """Project name -> scopes held there besides those held everywhere."""
    limits: TokenLimits | None = None
    """Those of the token that the caller came with; None for a person at a browser and for the platform."""

    @classmethod
    def system(cls, name: str = "system") -> Self:
        """Return the actor of the platform itself: set-up commands, housekeeping."""
        return cls(None, name, frozenset(Scope))

    @property
    def person(self) -> UUID:
        """Id of the account that acts. Raises Unauthenticated for the platform itself and for nobody."""
        if self.user_id is None:
            raise Unauthenticated("This requires a user account.")
        return self.user_id

    @property
    def scopes(self) -> frozenset[Scope]:
        """All scopes the caller has anywhere."""
        return self.everywhere.union(*self.projects.values())

    def may(self, scope: Scope, project: str | None = None) -> bool:
        """Say whether the caller has a scope: in a project, or anywhere when none is named."""
        if scope in self.everywhere:
            return True
        if project is None:
            return any(scope in held for held in self.projects.values())
        return scope in self.projects.get(project, frozenset())

    def reach(self, scope: Scope) -> frozenset[str] | None:
        """Return the projects in which the caller has a scope; None: in all of them, also those to come."""
        if scope in self.everywhere:
            return None
        return frozenset(name for name, held in self.projects.items() if scope in held)

    def require(self, scope: Scope, project: str | None = None) -> None:
        """Raise PermissionDenied when the caller lacks a scope, naming it and the project."""
        if not self.may(scope, project):
            where = f" in the project {project}" if project is not None and scope in OF_PROJECTS else ""
            raise PermissionDenied(f"This needs the scope {scope}{where}.", extra={"required_scopes": [str(scope)]})

    def require_any(self, scopes: Iterable[Scope], project: str | None = None) -> None:
        """Raise PermissionDenied when the caller has none of the scopes."""
        wanted = list(scopes)
        if not any(self.may(scope, project) for scope in wanted):
            names = [str(scope) for scope in wanted]
            raise PermissionDenied(
                f"This needs one of the scopes {', '.join(names)}.", extra={"required_scopes": names}
            )
