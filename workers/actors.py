"""The Dramatiq actors: thin, each looks at one command and leaves the rest to its module.

An actor never raises for what can be expected: the command's row tells the outcome, the message only pointed at it.
"""

import dramatiq

from workers.database import StorePool
from workers.forking import ForkServerThread
from workers.hosting import host_lease
from workers.hosting_signals import Shutdown
from workers.rewards.base import ACTOR, QUEUE
from workers.rewards.scorer import Scorer
from workers.rollout.player import Player
from workers.settings import Settings


def register_hosting(
    broker: dramatiq.Broker, settings: Settings, pool: StorePool, shutdown: Shutdown, forks: ForkServerThread | None
) -> None:
    """Make this process carry out `host_lease`."""

    def host(run_id: int, no: int) -> None:
        host_lease(settings, pool, shutdown, run_id, no, forks)

    dramatiq.actor(broker=broker, actor_name="host_lease", queue_name="device")(host)


def register_playing(broker: dramatiq.Broker, player: Player) -> None:
    """Make this process carry out `play_groups`, many at a time on its event loop."""

    async def play(run_id: int, no: int) -> None:
        await player.play(run_id, no)

    dramatiq.actor(broker=broker, actor_name="play_groups", queue_name="rollout")(play)


def register_scoring(broker: dramatiq.Broker, scorer: Scorer) -> None:
    """Make this process carry out `score_episode`, many at a time on its event loop."""

    async def score(run_id: int, no: int) -> None:
        await scorer.score(run_id, no)

    dramatiq.actor(broker=broker, actor_name=ACTOR, queue_name=QUEUE)(score)
