"""Asks the engines of this node for their figures and stores them: all of them in one statement, once per slot."""

import asyncio
from collections.abc import Iterable

from flexmarl.contracts.events import DeviceUse
from flexmarl.store.telemetry.load_reports import EngineReport
from workers.errors import ChildRefused, ChildUnreachable
from workers.nodes.child_client import ChildClient
from workers.rollout.engines.wire import Stats


async def loads_of(clients: Iterable[ChildClient]) -> list[EngineReport]:
    """Return what the engines among some children tell; one that does not answer now is left out."""
    engines = [client for client in clients if client.child.use is DeviceUse.ENGINE]
    answers = await asyncio.gather(*(_asked(client) for client in engines))
    return [load_of(client, stats) for client, stats in zip(engines, answers, strict=True) if stats is not None]


async def _asked(client: ChildClient) -> Stats | None:
    try:
        return await client.stats()
    except (ChildUnreachable, ChildRefused):
        return None  # it just died, or is too busy to answer now


def load_of(client: ChildClient, stats: Stats) -> EngineReport:
    """Name an engine's figures by its run and lease."""
    return EngineReport(
        run_id=client.child.run_id,
        lease_id=client.child.lease_id,
        incarnation=client.child.incarnation,
        running=stats.running,
        waiting=stats.waiting,
        slots=stats.slots,
        generated=stats.generated_tokens,
        prompts=stats.prompt_tokens,
        cached=stats.cached_tokens,
        cache_use=stats.cache_use,
    )
