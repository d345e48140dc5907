"""The servers of tools of a run, in one rollout worker: a process of the package's own interpreter for each episode
that calls a tool, forked from one that has imported the server.

Invariant: a session belongs to one episode. It begins with the episode's first call, so that episodes without one cost
nothing, and one that broke is never used again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flexmarl.contracts.specification.tools import McpServer, PinnedTool
from flexmarl.language.messages import ToolCall
from workers.rollout.isolation.keeper import within
from workers.rollout.isolation.lines import CallTools, OpenTools, ToolResult, ToolResults
from workers.rollout.isolation.process_pool import ProcessPool
from workers.rollout.isolation.processes import EnvironmentBroke, ForkedProcess, ForkHost
from workers.rollout.packages import Builds, start_packaged

MARGIN_S = 10.0
"""Beside the deadlines of calls, that of a server which is begun again, and of pings."""


@dataclass(slots=True)
class ToolPool(ProcessPool):
    """The sessions with one server."""

    spec: McpServer
    builds: Builds
    result_characters: int
    folder: Path | None = None

    @property
    def title(self) -> str:
        return self.spec.package

    @property
    def close_timeout_s(self) -> float:
        return self.spec.close_timeout_s

    async def tools(self) -> tuple[PinnedTool, ...]:
        """Return what agents are shown."""
        return self.spec.pinned.tools

    async def begin(self) -> "ToolSession":
        """Begin a session, after the build that it needs. Raises EnvironmentBroke."""
        if self.folder is None:
            self.folder = await self.builds.of(self.spec)
        # The server's own deadline comes first: what it wrote when it ended says more.
        limit = self.spec.setup_timeout_s + MARGIN_S
        process, _ = await self.booted(limit, self.taken(OpenTools(), ToolResults))
        return ToolSession(self, process)

    def started(self) -> ForkHost:
        assert self.folder is not None
        options = {
            "arguments": self.spec.arguments,
            "setup_timeout_s": self.spec.setup_timeout_s,
            "call_timeout_s": self.spec.call_timeout_s,
            "result_characters": self.result_characters,
        }
        job = {
            "adapter": self.spec.type,
            "entry": self.spec.pinned.entry,
            "name": self.spec.server,
            "distribution": self.spec.package.partition("@")[0],
            "options": options,
            "memory": self.spec.memory_mb * 2**20,
        }
        return start_packaged(self.folder, "tools", job)


@dataclass(slots=True)
class ToolSession:
    """The session of one episode. Leave it in every case."""

    pool: ToolPool
    process: ForkedProcess
    whole: bool = True
    """Whether it waits for calls, so that its process can be used again."""

    async def call(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Make calls, one after the other. Raises EnvironmentBroke where the server is broken."""
        self.whole = False
        spec = self.pool.spec
        limit = len(calls) * (spec.call_timeout_s + MARGIN_S) + spec.setup_timeout_s
        said = await within("call", limit, self.process.ask(CallTools(list(calls)), ToolResults))
        if len(said.results) != len(calls):
            raise EnvironmentBroke(f"call: garbage: {len(said.results)} results of {len(calls)} calls")
        self.whole = True
        return said.results

    def leave(self) -> None:
        """Let go of the process."""
        self.pool.leave(self.process, whole=self.whole)
