"""An environment of a package that was built on this installation: which one, with which options.

What the options may be only the package knows; its manifest says it as a JSON schema, by which the control plane checks
them when a run is submitted.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from flexmarl.contracts.base import Strict
from flexmarl.contracts.specification.environment_base import (
    EnvironmentFacts,
    IsolatedEnvironmentOptions,
    RoleFacts,
)

NAMED = (
    r"^([A-Za-z0-9][A-Za-z0-9._-]{0,99}@[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$"
)
UNPINNED_ROLE = "player"
"""The seat of a package that nobody looked up yet."""


class PinnedBuild(Strict):
    """A build of a package. Set when the run is created; what is written here is replaced."""

    id: str = ""
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Of all that was installed."""
    entry: str = ""


class PinnedProgram(PinnedBuild):
    """The build whose program a run starts. Set when the run is created; what is written here is replaced."""

    adapter: str = ""
    """Library of which it is an environment; empty: it is a function that is called with its session."""


class PinnedPackage(PinnedBuild):
    """The build that a run plays. Set when the run is created; what is written here is replaced."""

    adapter: str = ""
    title: str = ""
    roles: tuple[str, ...] = ()
    opens: tuple[str, ...] = ()
    best_score: float = 1.0


class PackageEnvironment(IsolatedEnvironmentOptions):
    """An environment of a package that somebody uploaded or named, in processes without credentials.

    Score: the package's own. For language models with a chat template.
    """

    converses: ClassVar[bool] = True

    type: Literal["package"] = "package"
    package: str = Field(default="example@1.0.0", pattern=NAMED, examples=["textarena@0.7.4"])
    """NAME@VERSION of a package of the run's project, or the id of one that the submitter may read."""
    environment: str = Field(default="", max_length=100, examples=["TicTacToe-v0"])
    """Name of the environment; may be absent where the package has one."""
    options: Annotated[dict[str, JsonValue], Field(max_length=64)] = {}
    """Options of the environment, as the package's manifest describes them."""
    max_turns: int = Field(default=16, ge=1, le=1000)
    """Turns of each agent after which an episode ends and is scored as it stands."""
    reply_tokens: int = Field(default=64, ge=1, le=16_384)
    """Maximum tokens in a reply; `sampling.max_tokens` of an agent may set fewer."""
    memory_mb: int = Field(default=2048, ge=64, le=65_536)
    """Address space of each of its processes in MiB; an episode that needs more fails."""
    pinned: PinnedPackage = PinnedPackage()
    """Build and roles that the control plane writes down when the run is made; not set by hand."""

    def facts(self) -> EnvironmentFacts:
        names = self.pinned.roles or (UNPINNED_ROLE,)
        opens = self.pinned.opens or names[:1]
        roles = tuple(
            RoleFacts(
                name,
                int(name in opens),
                self.max_turns,
                tuple(one for one in names if one != name),
                opens=name in opens,
            )
            for name in names
        )
        best = self.pinned.best_score
        title = self.pinned.title or "Package"
        return EnvironmentFacts(title, roles, None, best, best, "the package says so")
