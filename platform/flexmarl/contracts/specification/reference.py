"""Which of its earlier versions a policy is kept near to.

Invariant: what a version is compared with depends on its number alone and is never a later one, so that a step that is
taken again is compared with the same.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from flexmarl.contracts.base import Strict


class FirstVersion(Strict):
    """Version 0, demonstrations included."""

    type: Literal["first"] = "first"

    def of(self, version: int) -> int:
        """Return what a version is compared with."""
        return 0


class NamedVersion(Strict):
    """A given version, as soon as it exists; until then version 0."""

    type: Literal["version"] = "version"
    version: int = Field(default=1, ge=1, le=1_000_000)
    """Version number: the step that made it, from 1."""

    def of(self, version: int) -> int:
        """Return what a version is compared with."""
        return self.version if version >= self.version else 0


class RenewedVersion(Strict):
    """The newest version whose number is a multiple of `every`."""

    type: Literal["renewed"] = "renewed"
    every: int = Field(default=20, ge=2, le=1_000_000)
    """Interval in steps between reference updates."""

    def of(self, version: int) -> int:
        """Return what a version is compared with."""
        return version // self.every * self.every


def _typed(data: object) -> object:
    """A word is a type."""
    return {"type": data} if isinstance(data, str) else data


def ends_of_rounds(version: int, steps: int, most: int) -> list[int]:
    """Return the versions at which the last rounds of so many steps ended, newest first: the one that the round of a
    version began with, and those before it. Version 0 counts as such an end."""
    began = version // steps * steps
    return list(range(began, -1, -steps))[:most]


AnyReference = Annotated[
    Annotated[FirstVersion | NamedVersion | RenewedVersion, Field(discriminator="type")], BeforeValidator(_typed)
]
