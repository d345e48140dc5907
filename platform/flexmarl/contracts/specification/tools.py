"""Tools that agents of a team may call between what they read and what they answer: servers of packages, and servers
that run elsewhere and are reached by URL.

What a server of a package offers only its manifest knows; the control plane pins the tools into the specification when
a run is made, so that prompts hold what was chosen then. What a server behind a URL offers only it knows; the rollout
worker that asks it first pins the tools for the run (`flexmarl.store.data.tool_listings`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.package import NAMED, PinnedBuild

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec

WHERE = "/environment/tools/servers"
ToolName = Annotated[str, Field(min_length=1, max_length=64)]


class PinnedTool(Strict):
    """A tool as the agents' prompts name it."""

    name: str
    description: str = ""
    parameters: dict[str, JsonValue] = {}
    """JSON Schema of its arguments."""

    def function(self) -> dict[str, Any]:
        """Return it in the form that chat templates read."""
        told = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": told}


class PinnedServer(PinnedBuild):
    """The build that a run uses. Set when the run is created; what is written here is replaced."""

    tools: tuple[PinnedTool, ...] = ()


class ServerOptions(Strict):
    """What is said of a server of tools, wherever it runs."""

    type: str
    only: tuple[ToolName, ...] = Field(default=(), max_length=128)
    """Tools that agents are shown; all of them when empty."""
    agents: tuple[Name, ...] = Field(default=(), max_length=16)
    """Seats that may call them; every seat of the team when empty."""
    setup_timeout_s: float = Field(default=60.0, gt=0.0, le=600.0)
    """Timeout for the start of a session, which is when an episode first calls one of its tools."""
    call_timeout_s: float = Field(default=20.0, gt=0.0, le=600.0)
    """Timeout for the answer to a call; the agent is told, and may go on."""

    @property
    def title(self) -> str:
        """What reasons and refusals call it."""
        raise NotImplementedError

    @property
    def known_names(self) -> frozenset[str]:
        """Names of tools that it is known to have before it is asked; empty: not known."""
        return frozenset(self.only)

    def is_of(self, seat: str) -> bool:
        """Say whether a seat may call its tools."""
        return not self.agents or seat in self.agents


class McpServer(ServerOptions):
    """A server of a package that speaks the Model Context Protocol; each episode has a session of its own."""

    type: Literal["mcp"] = "mcp"
    package: str = Field(pattern=NAMED, examples=["mcp-server-time@2026.10.10"])
    """NAME@VERSION of a package of the run's project, or the id of one that the submitter may read."""
    server: str = Field(default="", max_length=100)
    """Which of the package's servers; may be absent where it has one."""
    arguments: tuple[Annotated[str, Field(max_length=1000)], ...] = Field(default=(), max_length=32)
    """Words that the server is started with."""
    close_timeout_s: float = Field(default=5.0, gt=0.0, le=600.0)
    """Timeout for the end of a session; then it is killed. The episode counts nevertheless."""
    memory_mb: int = Field(default=1024, ge=64, le=65_536)
    """Address space of each of its processes in MiB."""
    pinned: PinnedServer = PinnedServer()
    """Build and tools that the control plane writes down when the run is made; not set by hand."""

    @property
    def title(self) -> str:
        return self.package

    @property
    def known_names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.pinned.tools)


class McpUrl(ServerOptions):
    """A server that you run already, asked over the streamable HTTP transport of the Model Context Protocol; each
    episode has a session of its own."""

    type: Literal["mcp_url"] = "mcp_url"
    url: str = Field(
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", max_length=500, examples=["https://tools.example.org/mcp"]
    )
    """URL of the server's MCP endpoint. Its host must be allowed on the rollout workers; redirects are not followed."""
    secret: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]{0,63})?$", examples=["TOOLS_KEY"])
    """Name of the secret sent as a bearer token; its value is FLEXMARL_EXTERNAL_SECRET_<name> on the rollout workers.
    Empty: none."""
    close_timeout_s: float = Field(default=5.0, gt=0.0, le=600.0)
    """Timeout for the request that ends a session; the episode counts nevertheless."""

    @property
    def title(self) -> str:
        return self.url


def _typed(value: object) -> object:
    """Read a server that says no type as one of a package."""
    return {"type": "mcp", **value} if isinstance(value, Mapping) else value


ToolServer = Annotated[McpServer | McpUrl, Field(discriminator="type")]


class ToolUse(Strict):
    """What agents may call, and how much of it."""

    servers: tuple[Annotated[ToolServer, BeforeValidator(_typed)], ...] = Field(default=(), max_length=8)
    """Where the tools come from: packages (`type: mcp`) and servers that you run already (`type: mcp_url`); without
    any, agents have none."""
    turns: int = Field(default=4, ge=1, le=64)
    """Replies with calls that an agent may give before each of its answers; the calls of one more are not made."""
    result_characters: int = Field(default=4000, ge=100, le=100_000)
    """Characters of a result that the agent reads; what is longer is cut off, which it is told."""

    def has_any(self, seat: str) -> bool:
        """Say whether a seat may call tools, also before it is known which."""
        return any(server.is_of(seat) for server in self.servers)

    def problems(self, seats: Sequence[str], spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse seats that are not there, tools of one name, and whoever cannot call any."""
        for place, server in enumerate(self.servers):
            for number, name in enumerate(server.agents):
                if name not in seats:
                    yield Problem(
                        pointer=f"{WHERE}/{place}/agents/{number}",
                        code="unknown_seat",
                        detail=f"No seat of the team is named {name}.",
                        hint=f"Legal: {', '.join(seats)}.",
                    )
        yield from self.clashes(seats, [server.known_names for server in self.servers])
        for seat in seats:
            if self.has_any(seat) and seat in spec.agents and spec.agents[seat].external is not None:
                yield Problem(
                    pointer=f"/agents/{seat}/external",
                    code="not_with_tools",
                    detail=f"{seat} is played by an external model, which is not told of tools.",
                    hint="Give it a policy, or name the other seats in agents of each server.",
                )
        if self.servers and spec.mechanisms.ordered:
            yield Problem(
                pointer="/mechanisms/ordered",
                code="not_with_tools",
                detail="Ordered runs must be bitwise reproducible; what tools answer is not.",
                hint="Set false.",
            )

    def clashes(self, seats: Sequence[str], names: Sequence[frozenset[str]]) -> Iterator[Problem]:
        """Refuse two tools of one name before one seat, where the servers have tools of these names."""
        for place, server in enumerate(self.servers):
            own = set(server.agents or seats)
            for before, other in enumerate(self.servers[:place]):
                both = names[place] & names[before]
                if both and own & set(other.agents or seats):
                    clash, free = min(both), sorted(names[place] - both)
                    yield Problem(
                        pointer=f"{WHERE}/{place}/only",
                        code="tool_names_clash",
                        detail=f"{other.title} and {server.title} both have a tool {clash}.",
                        hint=f"Set only: [{', '.join(free)}], or give them to different agents."
                        if free
                        else "Give them to different agents, or remove one.",
                    )


NO_TOOLS = ToolUse()
