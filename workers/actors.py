"""The Dramatiq actors: thin, each looks at one command and leaves the rest to its module.

An actor never raises for what can be expected: the command's row tells the outcome, the message only pointed at it.
"""

import dramatiq

from workers.broker import PromptBroker
from workers.database import Pool
from workers.hosting import Shutdown, host_lease
from workers.rollout.player import Player
from workers.settings import Settings


def register_hosting(broker: PromptBroker, settings: Settings, pool: Pool, shutdown: Shutdown) -> None:
    """Make this process carry out `host_lease`."""

    def host(run_id: int, no: int) -> None:
        host_lease(settings, pool, shutdown, run_id, no)

    dramatiq.actor(broker=broker, actor_name="host_lease", queue_name="device")(host)


def register_playing(broker: PromptBroker, player: Player) -> None:
    """Make this process carry out `play_groups`, many at a time on its event loop."""

    async def play(run_id: int, no: int) -> None:
        await player.play(run_id, no)

    dramatiq.actor(broker=broker, actor_name="play_groups", queue_name="rollout")(play)
