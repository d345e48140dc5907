"""Commands that are started as a rollout worker starts them, with the package of examples/programs; tokens are
scripted."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import psycopg

from flexmarl.contracts.specification.commands import CommandRunner
from flexmarl.contracts.specification.package import PinnedBuild
from flexmarl.contracts.specification.program import ProgramEnvironment
from tests.support.builds import no_store
from tests.support.chat_templates import CHATML, renderer
from tests.support.gateway_stand import PIN, RUN, WORDS, Stand
from tests.support.package_files import wheel
from tests.support.system import ROOT
from workers.containers import ContainerSettings
from workers.rollout.datasets import DatasetLines
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder, play_episode
from workers.rollout.gateway.commands import CommandPool
from workers.rollout.gateway.images import Images
from workers.rollout.gateway.stage import ProgramStage
from workers.rollout.packages import Builds
from workers.rollout.speech import Seat
from workers.vocabulary import Codec

EXAMPLE = ROOT / "examples/programs/fix_bugs/fix_bugs"
FIX = ["fix", "answer.py", "{prompt}"]
CHECK = {
    "type": "evaluate", "command": ["python", "check.py"], "files": {"folder": "fix_bugs/hidden/{task}"},
}  # fmt: skip
RIGHT = "```python\ndef add(a, b):\n    return a + b\n```"
WRONG = "```python\ndef add(a, b):\n    return 5\n```"
ENVIRONMENT = ProgramEnvironment(tasks=3, held_out=1, boot_timeout_s=60, run_timeout_s=60, reply_tokens=200)


def fix_bugs() -> tuple[str, bytes]:
    """Return the wheel of the example."""
    beside = {
        f"fix_bugs/{path.relative_to(EXAMPLE)}": path.read_text()
        for path in sorted(EXAMPLE.rglob("*"))
        if path.is_file() and path.suffix in {".py", ".md"} and path.name != "__init__.py"
    }
    points = {"entry_points.txt": "[console_scripts]\nfix = fix_bugs:main\n"}
    return wheel("1.0.0", (EXAMPLE / "__init__.py").read_text(), "fix_bugs", points, beside=beside)


class Commands:
    """Plays sessions with commands that are started here."""

    def __init__(
        self, stand: Stand, home: Path, built: dict[str, Any], containers: ContainerSettings | None = None
    ) -> None:
        self.stand, self.home, self.built = stand, home, built
        self.images = Images(containers)
        self.pools: list[CommandPool] = []
        self.spec = ENVIRONMENT
        self.rows: DatasetLines | None = None
        self._members = itertools.count()

    def stage(self, environment: dict[str, Any] | None = None, *, mends: bool = True, **runner: Any) -> ProgramStage:
        """Return where sessions of a runner are played; it mends a file of the package unless told otherwise."""
        known = {
            "package": "fix-bugs@1.0.0", "command": FIX, "workspace": {"folder": "fix_bugs/bugs/{task}"},
            "prompt_file": "PROMPT.md", "evaluator": CHECK, "memory_mb": 1024,
        }  # fmt: skip
        runner = {**known, **runner} if mends else runner
        digest = self.built["digest"] if runner.get("package") else ""
        pinned = PinnedBuild(id="00000000-0000-0000-0000-000000000001", digest=digest)
        settings = CommandRunner.model_validate({**runner, "pinned": pinned})
        spec = self.spec.model_copy(update={"runner": settings, **(environment or {})})
        pool = CommandPool(RUN, settings, self.stand.gateway, Builds(self.home, no_store), self.images)
        self.pools.append(pool)
        return ProgramStage(RUN, spec, self.stand.gateway, pool, self.rows)

    async def play(self, stage: ProgramStage, task: int = 0, held_out: bool = False) -> EpisodeAttempt:
        codec, chats = Codec(WORDS.to_str().encode()), renderer(CHATML)
        seats = {role: Seat(role, PIN, codec, 200, 1.0, renderer=chats) for role in stage.spec.seats}
        member = next(self._members)
        order = EpisodeOrder(1, member, 1, task, held_out, 1, 60.0, 30.0, None)
        return await asyncio.wait_for(play_episode(order, stage, seats, self.stand.engine), 120)

    async def all_of(self, stages: list[ProgramStage]) -> list[EpisodeAttempt]:
        """Play a session of each at the same time."""
        return list(await asyncio.gather(*map(self.play, stages)))

    async def does(self, *texts: str, task: int = 0, **runner: Any) -> EpisodeAttempt:
        """Play one session in which the agent says these texts."""
        self.stand.engine.texts = list(texts)
        return await self.play(self.stage(**runner), task)

    async def rows_of(self) -> list[dict[str, Any]]:
        """Return the rows of sessions in their order, once they are over and their commands have been ended."""
        for pool in self.pools:
            await pool.close()
        for _ in range(600):
            with self.stand.conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
                rows = cursor.execute("SELECT * FROM store.program_session ORDER BY member").fetchall()
            if all(row["state"] in ("finished", "ended") for row in rows):
                break
            await asyncio.sleep(0.1)
        return rows

    async def row(self) -> dict[str, Any]:
        """Return the row of the only session."""
        [row] = await self.rows_of()
        return row
