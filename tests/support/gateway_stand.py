"""A session of an agent program under way: the real gateway, store, chains and record; tokens are scripted."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from psycopg_pool import ConnectionPool

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.program import ProgramEnvironment
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control import program_sessions, runs
from tests.support.chat_templates import CHATML, END, renderer, tokenizer
from workers.rollout.engines.wire import CompletionChoice
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder, play_episode
from workers.rollout.gateway.server import Gateway, GatewayPlace
from workers.rollout.gateway.stage import ProgramStage
from workers.rollout.slots import HeldSlots
from workers.rollout.speech import Seat
from workers.rollout.turns import TurnRefusedError, TurnReply, TurnRequest
from workers.vocabulary import Codec

RUN = 1
PIN = PolicyPin(version=1, digest="a" * 64)
WORDS = tokenizer()
SPEC = ProgramEnvironment(seats=("solver", "reviser"), boot_timeout_s=60, run_timeout_s=60, reply_tokens=200)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
HOT_COLD = {"agents": {"guesser": {}, "hinter": {}}, "environment": {"type": "hot_cold"}}

Client = TypeVar("Client", AsyncOpenAI, AsyncAnthropic)


class Scripted:
    """Answers turns with texts, in their order; keeps what was asked."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.asked: list[TurnRequest] = []
        self.refusal: Exception | None = None
        self.positions = 10**9
        """Of its model; a longer prompt is refused."""
        self.free = asyncio.Event()
        self.free.set()

    async def until_held(self, request: TurnRequest, limit: float) -> float:
        return 0.0

    async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
        self.asked.append(request)
        await self.free.wait()
        if self.refusal is not None:
            raise self.refusal
        if len(request.prompt) > self.positions:
            text = f"{len(request.prompt)} positions, {self.positions} at most"
            raise TurnRefusedError("context_overflow", text)
        text = self.texts.pop(0) if self.texts else f"answer {len(self.asked)}"
        ids = WORDS.encode(text + END).ids[: request.max_tokens]
        finish = "stop" if ids[-1] == WORDS.token_to_id(END) else "length"
        return TurnReply(CompletionChoice(0, ids, [-1.0] * len(ids), finish, [1, len(ids)]), "e", 1.0)


class Stand:
    """One session under way: its player in a task, its program's client in the test."""

    def __init__(self, conn: psycopg.Connection, gateway: Gateway, engine: Scripted) -> None:
        self.conn, self.gateway, self.engine = conn, gateway, engine
        self.key = "fms_" + "k" * 43
        self.url = self.session = ""
        self.template = CHATML
        self.held: HeldSlots | None = None
        self.playing: asyncio.Task[EpisodeAttempt] | None = None
        self._clients: list[AsyncOpenAI | AsyncAnthropic] = []

    async def begin(self, instructions: str = "", trained: Collection[str] = (), **settings: Any) -> AsyncOpenAI:
        """Have a program take a session; `instructions` are those of its agents, of which some are trained."""
        spec = SPEC.model_copy(update=settings)
        chats = renderer(self.template)
        codec = Codec(WORDS.to_str().encode())
        seats = {
            role: Seat(
                role,
                PIN,
                codec,
                200,
                1.0,
                renderer=chats,
                instructions=instructions,
                trained=role in trained,
                takes_formats=role not in trained or spec.formats == "held",
            )
            for role in spec.seats
        }
        order = EpisodeOrder(1, 0, 1, 7, False, 1, 120.0, 120.0, None)
        stage = ProgramStage(RUN, spec, self.gateway)
        self.playing = asyncio.create_task(play_episode(order, stage, seats, self.engine, held=self.held))
        while (session := self.taken()) is None:
            await asyncio.sleep(0.05)
        self.session = str(session)
        query = "SELECT base_url, task, draw, member, attempt FROM store.program_session WHERE id = %s"
        self.url, *played = self.conn.execute(query, [session]).fetchone()
        assert played == [7, 1, 0, 1]
        return self.client()

    def taken(self) -> UUID | None:
        self.awake()
        return program_sessions.take(self.conn, RUN, sha256(self.key.encode()).hexdigest())

    def client(self, **options: Any) -> AsyncOpenAI:
        return self._made(AsyncOpenAI(base_url=f"{self.url}/v1", **{**self.options(), **options}))

    def options(self) -> dict[str, Any]:
        """Clients give up after 5 s without a connection; one process is all of them, and may be busy for as long."""
        return {"api_key": self.key, "max_retries": 0, "timeout": 120.0}

    def anthropic(self, **options: Any) -> AsyncAnthropic:
        return self._made(AsyncAnthropic(base_url=self.url, **{**self.options(), **options}))

    def _made(self, client: Client) -> Client:
        self._clients.append(client)
        return client

    async def close(self) -> None:
        """Close the clients: what is left of one would close itself in the event loop of another test."""
        for client in self._clients:
            await client.close()

    def awake(self) -> None:
        """Say that the worker is there: on a busy machine one process that is all of them may be silent for long."""
        self.conn.execute(
            "UPDATE store.program_session SET seen_at = clock_timestamp() WHERE state = ANY(%s)",
            [list(program_sessions.LIVE)],
        )

    def report(self, **said: Any) -> bool:
        self.awake()
        return program_sessions.report(self.conn, RUN, UUID(self.session), said)

    def reward_later(self, timeout_s: float) -> bool:
        self.awake()
        return program_sessions.await_reward(self.conn, RUN, UUID(self.session), timeout_s)

    async def finished(self, **said: Any) -> EpisodeAttempt:
        assert self.report(**said), self.conn.execute("TABLE store.program_session").fetchall()
        return await self.ended()

    async def ended(self) -> EpisodeAttempt:
        assert self.playing is not None
        return await asyncio.wait_for(self.playing, 60)

    async def meter(self, wanted: Callable[[int, int, float], bool]) -> tuple[int, int, float]:
        """Return calls, tokens and seconds left as the row says them, once they are as wanted."""
        for _ in range(1200):
            row = self.conn.execute("SELECT calls, tokens, coalesce(left_s, 1e9) FROM store.program_session").fetchone()
            if wanted(*row):
                return row
            await asyncio.sleep(0.05)
        raise AssertionError(f"the row still says {row}")

    async def state(self, *states: str) -> tuple[str, str]:
        """Return how the row of the session ended, once it says one of these states."""
        for _ in range(1200):
            row = self.conn.execute("SELECT state, reason FROM store.program_session").fetchone()
            if row[0] in (states or ("finished", "ended")):
                return row
            await asyncio.sleep(0.05)
        return row


@asynccontextmanager
async def standing(store_conn: psycopg.Connection, store_url: str) -> AsyncIterator[Stand]:
    """Yield a gateway that no session has been opened at."""
    runs.create_run(store_conn, RUN, resolve(HOT_COLD).document, RunStatus.RUNNING)
    with ConnectionPool(store_url, min_size=1, max_size=2, kwargs={"autocommit": True}) as pool:

        async def store(call: Any) -> Any:
            def work() -> Any:
                with pool.connection() as conn:
                    return call(conn)

            return await asyncio.to_thread(work)

        gateway = Gateway(GatewayPlace(), store)
        made = Stand(store_conn, gateway, Scripted())
        yield made
        await made.close()
        if made.playing is not None:
            made.playing.cancel()
            await asyncio.wait([made.playing])
        await gateway.close()
