"""Where the episodes of agent programs play: in sessions of this worker's gateway."""

from dataclasses import dataclass

from flexmarl.contracts.specification.program import ProgramEnvironment
from workers.rollout.gateway.server import Gateway
from workers.rollout.gateway.sessions import Count, ProgramSession
from workers.rollout.isolation import EnvironmentBroke


@dataclass(frozen=True, slots=True)
class ProgramStage:
    """The sessions of one run in one rollout worker."""

    run_id: int
    spec: ProgramEnvironment
    gateway: Gateway

    async def begin(
        self, task_seed: int, held_out: bool, episode: tuple[int, int, int], count: Count
    ) -> ProgramSession:
        """Open a session, and wait for a program that takes it. Raises EnvironmentBroke.

        `episode`: draw, member and attempt.
        """
        spec = self.spec
        task = spec.tasks + task_seed % spec.held_out if held_out else task_seed % spec.tasks
        session = await self.gateway.open(self.run_id, spec, held_out, task, episode, count)
        try:
            await session.begin()
        except BaseException as error:  # also where the run does not need it any more
            session.leave(f"environment: {error}" if isinstance(error, EnvironmentBroke) else "")
            raise
        return session

    async def close(self) -> None:
        """Do nothing: sessions end with their episodes."""
