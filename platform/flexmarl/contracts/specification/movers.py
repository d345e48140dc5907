"""Movers: which policies engines serve, where there is a choice. Code: `flexmarl.algorithms.movers`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from flexmarl.contracts.plugins import Kind, PluginOptions
from flexmarl.contracts.problems import Problem

if TYPE_CHECKING:
    from flexmarl.contracts.specification.experiment import ExperimentSpec


class MoverOptions(PluginOptions):
    """Which policies engines serve, where `engine_policies` or `engine_versions` in `resources` leaves a choice."""

    moves_slots: ClassVar[bool] = True
    """Whether it moves slots of engines from one policy to another while queues differ."""

    @property
    def repack_every_s(self) -> float | None:
        """Seconds between two looks at the replies that engines of one version have left; None: none are gathered."""
        return None

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse moves of slots where engines have none that move."""
        if not self.moves_slots:
            return
        if spec.resources.engine_versions == 1:
            yield Problem(
                pointer="/mechanisms/mover/type",
                code="not_with_one_version",
                detail="Slots move between policies only if engines cannot hold all of them; these engines hold all.",
                hint="Set repack, or engine_versions: 2 in /resources.",
            )
        if spec.mechanisms.allocation.type == "colocated" and spec.resources.has_places(len(spec.policies)):
            yield Problem(
                pointer="/mechanisms/mover/type",
                code="not_with_colocated",
                detail="Engine slots move by queue length; sleeping engines have no queues.",
                hint="Set static, or type: agent_centric in /mechanisms/allocation.",
            )


class StaticMoverOptions(MoverOptions):
    """Slots are spread over policies once, by number of roles, and move only if a policy has no engine."""

    type: Literal["static"] = "static"

    moves_slots: ClassVar[bool] = False


class DemandMoverOptions(MoverOptions):
    """Slots also move from policies with short queues to those with long ones."""

    type: Literal["demand"] = "demand"
    delta: float = Field(default=5.0, gt=0.0, le=100_000.0)
    """Minimum difference in queued turns per engine between the longest and the shortest queue before a slot moves."""
    hold_s: float = Field(default=5.0, ge=0.0, le=86_400.0)
    """Minimum time a policy keeps a slot after a move; five times what its weights take to load, where that is more. A
    policy that nobody asks keeps its last slot five times as long."""


class RepackMoverOptions(MoverOptions):
    """For engines that serve one version: the remaining replies of an old version are gathered on few engines."""

    type: Literal["repack"] = "repack"
    below: int = Field(default=32, ge=1, le=65_536)
    """Engines with fewer replies than this and an empty queue may be emptied, and none is filled beyond it. Use the
    batch size at which an engine saturates."""
    every_s: float = Field(default=5.0, ge=1.0, le=86_400.0)
    """Interval between checks, besides one after each committed update."""
    cache_tokens: int | None = Field(default=None, ge=1)
    """Capacity of an engine's KV cache in tokens, beyond which no engine is filled; null: derived from `below`."""

    moves_slots: ClassVar[bool] = False

    @property
    def repack_every_s(self) -> float | None:
        """Seconds between two looks at the replies that engines have left."""
        return self.every_s

    def refusals(self, spec: "ExperimentSpec") -> Iterator[Problem]:
        """Refuse engines that need no gathering."""
        if spec.resources.engine_versions != 1:
            yield Problem(
                pointer="/mechanisms/mover/type",
                code="needs_one_version",
                detail="An engine that serves two versions loads newer weights while older replies finish, so "
                "repacking these gains nothing.",
                hint="Set static, or engine_versions: 1 in /resources.",
            )


MOVER: Kind[MoverOptions] = Kind(
    "mover", "/mechanisms/mover", MoverOptions, (StaticMoverOptions, DemandMoverOptions, RepackMoverOptions)
)
