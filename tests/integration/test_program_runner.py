"""Programs of packages that a rollout worker starts: real builds and processes, gateway and store; tokens are scripted."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from flexmarl.contracts.package_manifests import PackageManifest
from flexmarl.contracts.specification.package import PinnedBuild
from flexmarl.contracts.specification.program import ProcessRunner
from flexmarl.contracts.wire import EpisodeStatus
from tests.support.gateway_stand import PIN, RUN, SPEC, WORDS, Stand, standing
from tests.support.chat_templates import CHATML, renderer
from tests.support.program_package import program_wheel, sample_program
from workers.packages.building import BuildOrder
from workers.packages.running import run_build
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder, play_episode
from workers.rollout.gateway.processes import ProgramPool
from workers.rollout.gateway.stage import ProgramStage
from workers.rollout.packages import Builds
from workers.rollout.speech import Seat
from workers.vocabulary import Codec

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(300)]


async def went_on(now: str, log: str) -> bool:
    return True


async def no_store(call: Any) -> Any:
    raise AssertionError("the build is here")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def built(home: Path) -> dict[str, Any]:
    """The one build that the tests share."""
    name, body = program_wheel()
    path = home / name
    path.write_bytes(body)
    return asyncio.run(run_build(home, BuildOrder("told-program", "", str(path)), home / "log", went_on))


class Here:
    """Plays sessions with programs that are started here."""

    def __init__(self, stand: Stand, home: Path, built: dict[str, Any]) -> None:
        self.stand, self.home, self.built = stand, home, built
        self.pools: list[ProgramPool] = []
        self.spec = SPEC

    def stage(self, options: dict[str, Any] | None = None, runner: dict[str, Any] | None = None) -> ProgramStage:
        [offer] = self.built["manifest"]["programs"]
        pinned = PinnedBuild(id="00000000-0000-0000-0000-000000000001", digest=self.built["digest"], entry=offer["entry"])
        settings = ProcessRunner(
            program=offer["name"], options=options or {}, pinned=pinned, memory_mb=512, **(runner or {})
        )
        spec = self.spec.model_copy(update={"runner": settings})
        pool = ProgramPool(RUN, settings, self.stand.gateway, Builds(self.home, no_store))
        self.pools.append(pool)
        return ProgramStage(RUN, spec, self.stand.gateway, pool)

    async def play(self, stage: ProgramStage, member: int = 0) -> EpisodeAttempt:
        codec, chats = Codec(WORDS.to_str().encode()), renderer(CHATML)
        seats = {role: Seat(role, PIN, codec, 200, 1.0, renderer=chats) for role in stage.spec.seats}
        order = EpisodeOrder(1, member, 1, 7, False, 1, 60.0, 30.0, None)
        return await asyncio.wait_for(play_episode(order, stage, seats, self.stand.engine), 90)

    async def does(self, what: str, runner: dict[str, Any] | None = None, **options: Any) -> EpisodeAttempt:
        return await self.play(self.stage({"what": what, **options}, runner))

    async def row(self) -> dict[str, Any]:
        """Return the row of the one session, once it is over and its program has been ended."""
        for pool in self.pools:
            await pool.close()
        await self.stand.state("finished", "ended")
        with self.stand.conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute("SELECT * FROM store.program_session").fetchone()


@pytest.fixture
async def here(store_conn: psycopg.Connection, store_url: str, home: Path, built: dict[str, Any]) -> AsyncIterator[Here]:
    async with standing(store_conn, store_url) as stand:
        made = Here(stand, home, built)
        yield made
        for pool in made.pools:
            await pool.close()


def test_a_manifest_names_programs_and_what_cannot_be_loaded(built: dict[str, Any]) -> None:
    manifest = PackageManifest.model_validate(built["manifest"])
    [offer] = manifest.programs
    assert (offer.name, offer.entry, offer.summary) == ("told", "told_program:play", "Do what it is told.")
    assert offer.options["properties"] == {
        "what": {"type": "string", "default": "well"}, "said": {"type": "string", "default": ""},
    }  # fmt: skip
    assert manifest.environments == ()
    [(name, reason)] = [(one.name, one.reason) for one in manifest.left_out]
    assert name == "broken"
    assert "missing" in reason


async def test_a_program_is_started_asks_and_is_paid(here: Here) -> None:
    attempt = await here.does("well")
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    assert len(attempt.turns) == 1
    assert attempt.outcome.scores == {"solver": 1.0, "reviser": 1.0}
    row = await here.row()
    assert (row["state"], row["report"], row["calls"], row["output"]) == ("finished", {"reward": 1.0}, 1, "begins well\n")
