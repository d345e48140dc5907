"""Processes of the gateway's benchmark: an engine that answers at once, and a gateway with episodes.

The gateway's process is what a rollout worker is, but for the player's loop over commands: real gateway, real chains,
the real client of engines, sessions in PostgreSQL.
"""

import asyncio
import resource
import time
from multiprocessing.connection import Connection
from typing import Any

from harness import ROOT  # noqa: F401  (source roots)
from psycopg_pool import ConnectionPool

from flexmarl.algorithms.routing import ROUTERS
from flexmarl.contracts.plane_tokens import TokenPlane, sign
from flexmarl.contracts.specification.program import ProgramEnvironment
from flexmarl.contracts.specification.routers import ROUTER
from flexmarl.contracts.wire import EpisodeStatus, PolicyPin
from flexmarl.store.control.engines import EngineRoute
from tests.support.chat_templates import renderer, tokenizer
from tests.support.scripted_engine import ScriptedEngine
from workers.rollout.engine_client import EngineClient
from workers.rollout.engines.wire import HeldVersion
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder, play_episode
from workers.rollout.gateway.server import Gateway, GatewayPlace
from workers.rollout.gateway.stage import ProgramStage
from workers.rollout.speech import Seat
from workers.vocabulary import Codec

RUN, SECRET, REPLY = 1, "secret", 16
PIN = PolicyPin(version=1, digest="a" * 64)
SPEC = ProgramEnvironment(
    seats=("solver", "reviser"), boot_timeout_s=600, run_timeout_s=3600, reply_tokens=REPLY, max_calls=1000, tasks=10**6
)


def key_of(number: int) -> str:
    """Return the key of a session by its number."""
    return f"fms_{number:043d}"


def engine_process(place: Connection) -> None:
    """Serve an engine whose replies have no cost, until the process is ended."""

    async def serve() -> None:
        holds = {seat: HeldVersion(PIN.version, PIN.digest) for seat in SPEC.seats}
        async with ScriptedEngine(holds, SECRET, run_id=RUN) as engine:
            place.send(engine.endpoint)
            while True:
                await asyncio.sleep(1)
                engine.requests.clear()

    asyncio.run(serve())


def gateway_process(orders: Connection, database_url: str, engine_url: str) -> None:
    """Play episodes of sessions as ordered: (first number, count), answered by how many finished and failed."""
    asyncio.run(_gateway(orders, database_url, engine_url))


async def _gateway(orders: Connection, database_url: str, engine_url: str) -> None:
    async def routes() -> list[EngineRoute]:
        token = sign(SECRET, RUN, TokenPlane.ROLLOUT, time.time())
        return [EngineRoute(1, engine_url, token, "scripted-1", dict.fromkeys(SPEC.seats, PIN))]

    words, chats = tokenizer(), renderer()
    codec = Codec(words.to_str().encode())
    seats = {role: Seat(role, PIN, codec, REPLY, 1.0, renderer=chats) for role in SPEC.seats}
    with ConnectionPool(database_url, min_size=1, max_size=2, kwargs={"autocommit": True}) as pool:

        async def store(call: Any) -> Any:
            def work() -> Any:
                with pool.connection() as conn:
                    return call(conn)

            return await asyncio.to_thread(work)

        gateway = Gateway(GatewayPlace(), store)
        client = EngineClient(routes, ROUTERS.make(ROUTER.options("least_loaded")))
        stage = ProgramStage(RUN, SPEC, gateway)
        orders.send("ready")
        while (order := await asyncio.to_thread(orders.recv)) is not None:
            if order == "memory":
                orders.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
                continue
            played = await asyncio.gather(
                *(play_episode(_order(no), stage, seats, client) for no in range(order[0], sum(order)))
            )
            orders.send((_finished(played), len(played) - _finished(played)))
        await gateway.close()
        await client.close()


def _finished(played: list[EpisodeAttempt]) -> int:
    return sum(one.status is EpisodeStatus.FINISHED for one in played)


def _order(number: int) -> EpisodeOrder:
    return EpisodeOrder(number, 0, 1, number, False, 1, 3600.0, 600.0, None)
