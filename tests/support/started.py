"""Programs of a package that are started as a rollout worker starts them; tokens are scripted."""

import asyncio
from pathlib import Path
from typing import Any

import psycopg

from flexmarl.contracts.specification.package import PinnedProgram
from flexmarl.contracts.specification.program import ProcessRunner
from tests.support.builds import no_store
from tests.support.chat_templates import CHATML, renderer
from tests.support.gateway_stand import PIN, RUN, SPEC, WORDS, Stand
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder, play_episode
from workers.rollout.gateway.processes import ProgramPool
from workers.rollout.gateway.stage import ProgramStage
from workers.rollout.packages import Builds
from workers.rollout.speech import Seat
from workers.vocabulary import Codec


class Here:
    """Plays sessions with programs that are started here."""

    def __init__(self, stand: Stand, home: Path, built: dict[str, Any]) -> None:
        self.stand, self.home, self.built = stand, home, built
        self.pools: list[ProgramPool] = []
        self.spec = SPEC

    def stage(self, options: dict[str, Any] | None = None, runner: dict[str, Any] | None = None) -> ProgramStage:
        [offer] = self.built["manifest"]["programs"]
        pinned = PinnedProgram(
            id="00000000-0000-0000-0000-000000000001", digest=self.built["digest"], entry=offer["entry"],
            adapter=offer["adapter"],
        )  # fmt: skip
        settings = ProcessRunner(
            program=offer["name"], options=options or {}, pinned=pinned, **{"memory_mb": 512, **(runner or {})}
        )
        spec = self.spec.model_copy(update={"runner": settings})
        pool = ProgramPool(RUN, settings, self.stand.gateway, Builds(self.home, no_store))
        self.pools.append(pool)
        return ProgramStage(RUN, spec, self.stand.gateway, pool)

    async def play(self, stage: ProgramStage, member: int = 0, task: int = 7, held_out: bool = False) -> EpisodeAttempt:
        codec, chats = Codec(WORDS.to_str().encode()), renderer(CHATML)
        seats = {role: Seat(role, PIN, codec, 200, 1.0, renderer=chats) for role in stage.spec.seats}
        order = EpisodeOrder(1, member, 1, task, held_out, 1, 60.0, 30.0, None)
        return await asyncio.wait_for(play_episode(order, stage, seats, self.stand.engine), 90)

    async def does(self, what: str, runner: dict[str, Any] | None = None, **options: Any) -> EpisodeAttempt:
        return await self.play(self.stage({"what": what, **options}, runner))

    async def rows(self) -> list[dict[str, Any]]:
        """Return the rows of sessions in their order, once they are over and their programs have been ended."""
        for pool in self.pools:
            await pool.close()
        await self.stand.gateway.written()
        with self.stand.conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute("SELECT * FROM store.program_session ORDER BY member").fetchall()

    async def row(self) -> dict[str, Any]:
        """Return the row of the only session."""
        [row] = await self.rows()
        return row
