"""What the commands of one run share in a rollout worker."""

from dataclasses import dataclass, field

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.language.renderer import Renderer
from workers.rollout.demand import Reporter
from workers.rollout.engine_client import EngineClient
from workers.rollout.external import ExternalClient
from workers.rollout.load_reports import LoadReporter
from workers.rollout.rewarding import Rewards
from workers.rollout.sharing import Sharing
from workers.rollout.slots import Slots
from workers.rollout.stages import Stage, leave_stage
from workers.vocabulary import Codec


@dataclass(slots=True)
class RunContext:
    """Connections, codecs, and the places in which its episodes play."""

    run_id: int
    spec: ExperimentSpec
    stage: Stage
    codecs: dict[str, Codec]
    client: EngineClient
    external: ExternalClient
    episodes: Slots
    """Of all commands of the run in this process together."""
    load: LoadReporter | None = None
    rewards: Rewards | None = None
    """Where a reward function says what an ended episode earned, instead of its environment."""
    renderers: dict[str, Renderer | None] = field(default_factory=dict)
    """By which messages become the ids of a policy; None for models that know only words."""
    reporter: Reporter | None = None
    """Where engines cannot hold every policy."""
    sharing: Sharing | None = None
    """Where rollouts are exchanged with other installations."""

    async def close(self) -> None:
        """Drop the connections to whoever answered turns, and what environments played in."""
        if self.reporter is not None:
            await self.reporter.stop()
        if self.rewards is not None:
            await self.rewards.close()
        if self.sharing is not None:
            await self.sharing.stop()
        if self.load is not None:
            await self.load.stop()
        await self.client.close()
        await self.external.close()
        await leave_stage(self.stage)
