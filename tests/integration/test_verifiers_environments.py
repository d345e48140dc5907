"""Environments of verifiers as packages: real build, processes, gateway and store; tokens are scripted.

In short, a stand-in of a few lines for the library is in the wheel; in full it is the real one as well, and the same
environment does what it is told.
"""

import asyncio
import json
import zipfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flexmarl.contracts.package_manifests import PackageManifest
from flexmarl.contracts.wire import EpisodeStatus
from tests.support.builds import went_on
from tests.support.forms import form
from tests.support.gateway_stand import SPEC, standing
from tests.support.started import Here
from tests.support.verifiers_package import odd_wheel, sample_environment
from workers.packages.building import BuildOrder, manifest_of
from workers.packages.folders import build_of
from workers.packages.running import run_build
from workers.rollout.episode import EpisodeAttempt

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def built(home: Path, distribution: str, file: Path) -> dict[str, Any]:
    said = asyncio.run(run_build(home, BuildOrder(distribution, "", str(file)), home / "log", went_on))
    if said.get("code") == "index_unreachable":
        pytest.skip("the package index cannot be reached")
    assert "digest" in said, said
    return said


@pytest.fixture(scope="module")
def sums(home: Path) -> dict[str, Any]:
    """The sample environment of one turn, unchanged: it asks for a least version of the library."""
    return built(home, "short-sums", sample_environment(home, "short_sums"))


@pytest.fixture(scope="module", params=form(short=["stand-in"], full=["stand-in", "real"]))
def odd(request: pytest.FixtureRequest, home: Path) -> dict[str, Any]:
    """The build of the environment that does what it is told."""
    real = request.param == "real"
    name, body = odd_wheel(alone=real)
    if not real:
        (home / name).write_bytes(body)
        return {**built(home, "odd-env", home / name), "memory_mb": 1024}
    # Another build of all that verifiers needs would take minutes: it is laid into one that is there.
    digest = request.getfixturevalue("sums")["digest"]
    folder = build_of(home, digest)
    assert folder is not None
    with zipfile.ZipFile(BytesIO(body)) as archive:
        archive.extractall(next((folder / "venv" / "lib").glob("python*/site-packages")))
    manifest = manifest_of(folder, BuildOrder("odd-env", ""))
    return {"digest": digest, "manifest": manifest.model_dump(mode="json"), "memory_mb": 2048}


class Odd:
    """Plays sessions of the environment that does what it is told."""

    def __init__(self, here: Here, memory_mb: int) -> None:
        self.here = here
        self.runner = {"memory_mb": memory_mb}

    async def does(
        self, what: str, member: int = 0, task: int = 3, held_out: bool = False, **more: Any
    ) -> EpisodeAttempt:
        stage = self.here.stage({"what": what, **more}, self.runner)
        return await self.here.play(stage, member, task, held_out)

    def questions(self) -> list[str]:
        """Return what was asked since this was called last."""
        asked, self.here.stand.engine.asked = self.here.stand.engine.asked, []
        return [one.conversation[-1].content for one in asked]


@pytest.fixture
async def playing(
    store_conn: psycopg.Connection, store_url: str, home: Path, odd: dict[str, Any]
) -> AsyncIterator[Odd]:
    async with standing(store_conn, store_url) as stand:
        here = Here(stand, home, odd)
        here.spec = SPEC.model_copy(update={"tasks": 8, "held_out": 2, "boot_timeout_s": 300.0})
        yield Odd(here, odd["memory_mb"])
        for pool in here.pools:
            await pool.close()


def test_a_manifest_says_what_an_environment_has(odd: dict[str, Any]) -> None:
    [offer] = PackageManifest.model_validate(odd["manifest"]).programs
    assert (offer.name, offer.entry, offer.adapter) == ("odd-env", "odd_env:load_environment", "verifiers")
    assert (offer.summary, offer.seats) == ("Does what it is told.", ())
    assert (offer.tasks, offer.held_out, offer.best_reward) == (8, 2, 1.0)
    assert offer.options["properties"]["rows"] == {"type": "integer", "default": 10}


async def test_an_environment_is_loaded_once_and_its_rubric_says_the_reward(playing: Odd) -> None:
    playing.here.stand.engine.texts = ["It is 3.", "no", "3"]
    stage = playing.here.stage({"what": "well"}, playing.runner)
    played = [await playing.here.play(stage, member, task=3) for member in range(3)]
    assert [one.reason for one in played] == ["", "", ""]
    assert [one.outcome.scores["solver"] for one in played] == [1.0, 0.0, 1.0]
    assert {turn.role for one in played for turn in one.turns} == {"solver"}, "the first seat is its model"
    assert playing.questions() == ["Say 3."] * 3, "members of a group have one row"
    for row in await playing.here.rows():
        assert row["state"] == "finished"
        assert "loads" not in row["output"], "the process that forks has loaded it"
        assert '"reward": ' in row["output"]


async def test_an_agent_that_says_nothing_is_scored_and_turns_are_one_chain(playing: Odd) -> None:
    playing.here.stand.engine.texts = ["", "1", "2", "3"]
    attempt = await playing.does("well")
    assert attempt.reason == ""
    assert attempt.outcome.scores["solver"] == 0.0
    attempt = await playing.does("turns", 1)
    assert attempt.reason == ""
    assert attempt.outcome.scores["solver"] == 1.0
    assert [turn.role for turn in attempt.turns] == ["solver"] * 3
    assert playing.questions() == ["Say 3.", "Say 3.", "Again.", "Again."]


@pytest.mark.parametrize("what", ["well", "own_rows"])
async def test_rows_of_training_and_of_evaluation_are_never_mixed(playing: Odd, what: str) -> None:
    playing.here.spec = playing.here.spec.model_copy(update={"tasks": 20, "held_out": 3})
    stage = playing.here.stage({"what": what}, playing.runner)
    for held_out, tasks in ((False, range(10)), (True, range(3))):
        for task in tasks:
            attempt = await playing.here.play(stage, 20 * held_out + task, task, held_out)
            assert attempt.reason == ""
        asked = playing.questions()
        if what == "own_rows":
            assert asked == (["Say 10.", "Say 20.", "Say 30."] if held_out else [f"Say {n}." for n in range(10)])
        else:
            assert asked == (["Say 7.", "Say 8.", "Say 9."] if held_out else [f"Say {n % 7}." for n in range(10)])


async def test_a_judge_is_a_seat_also_where_its_client_is_made_when_it_is_loaded(playing: Odd) -> None:
    for member, what in enumerate(("judge", "judge_at_load")):
        playing.here.stand.engine.texts = ["3", "yes"]
        attempt = await playing.does(what, member, judge="reviser")
        assert attempt.reason == ""
        assert attempt.outcome.scores["solver"] == 1.0
        assert [turn.role for turn in attempt.turns] == ["solver", "reviser"]


BROKEN = {
    "load": "boot: load_environment raised FileNotFoundError: rows.json",
    "none": "boot: load_environment returned NoneType, which is not a verifiers environment",
    "group": "boot: load_environment returned a rubric that compares the rollouts of a group, "
    "which are played apart here",
    "empty": "boot: load_environment returned a rubric without a reward function of any weight",
    "no_rows": "program: its environment has no rows to train on (dataset)",
    "same": "program: each of its rows has the prompt of one of the last 2, which are held out",
    "raise": "program: the reward function reward raised KeyError: 'answer_key'",
    "nan": "program: the reward function reward returned nan, not a finite number",
    "words": "program: the reward function reward raised ValueError: could not convert string to float: 'much'",
    "judge": "model: there is no 'gpt-9'; one of solver, reviser.",
    "large": "score: reward: send a number from 0 to 1 (environment.best_reward)",
    "error": "program: ToolCallError('the shop is closed')",
    "bug": "program: ZeroDivisionError: no pieces",
}


async def test_what_befalls_an_environment_is_named_and_nothing_is_earned(playing: Odd) -> None:
    for member, (what, reason) in enumerate(BROKEN.items()):
        attempt = await playing.does(what, member)
        assert (attempt.status, attempt.outcome, attempt.broke) == (EpisodeStatus.FAILED, None, True), what
        assert attempt.reason.endswith(reason), what
    attempt = await playing.does("well", 20, rows=2)
    rule = "environment.held_out is 2 and takes its last rows: set at most 1"
    assert attempt.reason.endswith(f"its dataset has 2 rows and there is no eval_dataset; {rule}")
    assert {row["state"] for row in await playing.here.rows()} == {"ended"}


async def test_a_rollout_beyond_its_time_fails_by_name(playing: Odd) -> None:
    playing.here.spec = playing.here.spec.model_copy(update={"run_timeout_s": 10.0})
    attempt = await playing.does("hang")
    known = "the program reported nothing in its time (environment.run_timeout_s: 10 s)"
    assert attempt.reason == f"environment: run: {known}"


@pytest.mark.full
async def test_environments_of_the_real_library_train_unchanged(
    store_conn: psycopg.Connection, store_url: str, home: Path, sums: dict[str, Any]
) -> None:
    path = sample_environment(home, "price_list", needs="verifiers==0.1.14")
    prices = await asyncio.to_thread(built, home, "price-list", path)
    versions = [{one["name"]: one["version"] for one in said["lock"]}["verifiers"] for said in (sums, prices)]
    assert versions == ["0.2.1", "0.1.14"]
    async with standing(store_conn, store_url) as stand:
        here = Here(stand, home, sums)
        here.spec = SPEC.model_copy(update={"tasks": 80, "held_out": 20, "best_reward": 1.2, "boot_timeout_s": 300.0})
        stage = here.stage({"largest": 9}, {"memory_mb": 2048})
        stand.engine.texts = ["4", "It is 4.", "5"]
        played = [await here.play(stage, member, task=3) for member in range(3)]
        assert [(one.reason, one.outcome.team_score) for one in played] == [("", 1.2), ("", 1.0), ("", 0.2)]
        print("seconds of a session:", [round(one.finished_at - one.started_at, 2) for one in played])

        here.built = prices
        call = '<tool_call>\n{"name": "price", "arguments": {"item": "apple"}}\n</tool_call>'
        stand.engine.texts = [call, "They cost 12."]
        attempt = await here.play(here.stage({"most": 4}, {"memory_mb": 2048}), 3, task=3)
        assert (attempt.reason, attempt.outcome.team_score) == ("", 1.0)
        assert stand.engine.asked[-1].conversation[-1].content == "3", "the tool was called"
        metrics = json.loads((await here.rows())[-1]["output"].splitlines()[-1])["metrics"]
        assert metrics["price_calls"] == 1.0
        for pool in here.pools:
            await pool.close()
