"""Where the episodes of agent programs play: in sessions of this worker's gateway."""

import secrets
from dataclasses import dataclass

from flexmarl.contracts.specification.program import ProgramEnvironment
from flexmarl.store.server_paths import without_paths
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
    programs: ProgramPool | None = None
    """Starts programs; without one, sessions wait for programs that take them."""

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
            live = self.programs.play(session, told, seed)
        try:
            await session.begin(spec.boot_timeout_s if self.programs is None else None)
        except BaseException as error:  # also where the run does not need it any more
            live.leave(without_paths(f"environment: {error}") if isinstance(error, EnvironmentBroke) else "")
            raise
        return live

    async def close(self) -> None:
        """End programs that were started here; sessions end with their episodes."""
        if self.programs is not None:
            await self.programs.close()
