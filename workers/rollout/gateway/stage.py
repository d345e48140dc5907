"""Where the episodes of agent programs play: in sessions of this worker's gateway."""

import secrets
from dataclasses import dataclass
from typing import Any

from flexmarl.contracts.specification.program import ProgramEnvironment
from flexmarl.language.dataset_rows import from_line
from flexmarl.store.server_paths import without_paths
from workers.rollout.datasets import DatasetLines
from workers.rollout.gateway.commands import CommandPool
from workers.rollout.gateway.processes import ProgramPool, StartedProgram
from workers.rollout.gateway.server import Gateway
from workers.rollout.gateway.sessions import Count, ProgramSession
from workers.rollout.isolation import EnvironmentBroke


@dataclass(frozen=True, slots=True)
class ProgramStage:
    """The sessions of one run in one rollout worker."""

    run_id: int
    spec: ProgramEnvironment
    gateway: Gateway
    programs: ProgramPool | CommandPool | None = None
    """Starts programs; without one, sessions wait for programs that take them."""
    rows: DatasetLines | None = None
    """Of the environment's dataset, where it names one."""

    async def begin(
        self, task_seed: int, held_out: bool, seed: int, episode: tuple[int, int, int], count: Count
    ) -> ProgramSession | StartedProgram:
        """Open a session, and wait for a program that takes it, or start one. Raises EnvironmentBroke.

        `episode`: draw, member and attempt.
        """
        spec = self.spec
        number = task_seed % (spec.held_out if held_out else spec.tasks)
        task = spec.tasks + number if held_out else number
        if self.programs is not None:
            await self.programs.build()
        key = "" if self.programs is None else f"fms_{secrets.token_urlsafe(32)}"
        session = await self.gateway.open(self.run_id, spec, held_out, task, episode, count, key)
        live: ProgramSession | StartedProgram = session
        if self.programs is not None:
            purpose = "evaluation" if held_out else "training"
            which = {"task": task, "number": number, "held_out": spec.held_out, "purpose": purpose}
            told = {"id": str(session.id), **which, "seats": spec.seats, "key": key}
            live = self._started(session, told, seed, held_out, number)
        try:
            await session.begin(spec.boot_timeout_s if self.programs is None else None)
        except BaseException as error:  # also where the run does not need it any more
            live.leave(without_paths(f"environment: {error}") if isinstance(error, EnvironmentBroke) else "")
            raise
        return live

    def _started(
        self, session: ProgramSession, told: dict[str, Any], seed: int, held_out: bool, number: int
    ) -> StartedProgram:
        """Start a program for a session."""
        if not isinstance(self.programs, CommandPool):
            assert self.programs is not None
            return self.programs.play(session, told, seed)
        row = None
        if self.rows is not None:
            row = from_line((self.rows.held_out if held_out else self.rows.training)[number])
            session.asked(row.prompt)
        return self.programs.play(session, told, seed, row)

    async def close(self) -> None:
        """End programs that were started here; sessions end with their episodes."""
        if self.programs is not None:
            await self.programs.close()
