"""Programs of packages that a rollout worker starts: real build, processes, gateway and store; tokens are scripted."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from flexmarl.contracts.package_manifests import PackageManifest
from flexmarl.contracts.specification.package import PinnedProgram
from flexmarl.contracts.specification.program import ProcessRunner
from flexmarl.contracts.wire import EpisodeStatus
from tests.support.builds import went_on
from tests.support.gateway_stand import SPEC, standing
from tests.support.program_package import program_wheel, sample_program
from tests.support.started import Here
from workers.packages.building import QUIET, BuildOrder
from workers.packages.inside.starting import MOST_OUTPUT
from workers.packages.running import run_build
from workers.rollout.gateway.processes import NO_CALL
from workers.roots import python_path

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(300)]


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


@pytest.fixture
async def here(
    store_conn: psycopg.Connection, store_url: str, home: Path, built: dict[str, Any]
) -> AsyncIterator[Here]:
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
    assert (row["state"], row["report"], row["calls"], row["output"]) == (
        "finished",
        {"reward": 1.0},
        1,
        "begins well\n",
    )


async def test_what_a_program_is_told_and_what_it_cannot_see(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("FLEXMARL_CLUSTER_KEY", "secret")
    said = (
        "print(json.dumps([sorted(os.environ), os.getcwd() == str(session.workspace), os.listdir(), "
        "json.load(open(os.environ['FLEXMARL_TASK'])), os.environ['ANTHROPIC_BASE_URL'] + '/v1' == session.base_url, "
        "os.environ['OPENAI_API_KEY'] == os.environ['ANTHROPIC_API_KEY'] == session.key])) or 1.0"
    )
    attempt = await here.does("says", said=said)
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    row = await here.row()
    variables, own_folder, files, task, same_place, own_key = json.loads(row["output"].splitlines()[1])
    clients = {"OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "FLEXMARL_TASK"}
    assert set(variables) <= clients | {"PATH", "LANG", "LC_CTYPE", *QUIET}
    assert (own_folder, files, same_place, own_key) == (True, ["task.json"], True, True)
    assert task == {"session": str(row["id"]), "task": 7, "purpose": "training", "seats": ["solver", "reviser"]}


@pytest.mark.parametrize(
    ("what", "report"),
    [
        ("file", {"reward": 0.5}),
        ("later", {"reward": 0.5}),
        ("rewards", {"rewards": {"solver": 0.25, "reviser": 0.75}}),
    ],
)
async def test_a_reward_may_be_returned_awaited_or_written(here: Here, what: str, report: dict[str, Any]) -> None:
    attempt = await here.does(what)
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    assert (await here.row())["report"] == report


BROKEN = {
    "nothing": "score: none: it returned nothing and wrote no reward.json",
    "nan": "score: nonfinite: a reward is not a finite number",
    "large": "score: reward: send a number from 0 to 1 (environment.best_reward)",
    "words": "score: reward: send a number from 0 to 1 (environment.best_reward)",
    "agents": "score: agents: it is not known; known are reward and rewards",
    "fifo": "score: no answer within 3 s",
    "raise": "program: ValueError: no such shop",
    "exit": "program: exit code 3",
    "signal": "program: ended by signal 9 (Killed)",
    "hang": "run: the program reported nothing in its time (environment.run_timeout_s: 20 s)",
    "flood": "run: the program reported nothing in its time (environment.run_timeout_s: 6 s)",
    "memory": "program: memory: more than 512 MiB of address space",
    "no_call": NO_CALL,
}


async def test_what_befalls_a_program_is_named_and_nothing_is_earned(here: Here) -> None:
    """All at once: none of it touches another session. What floods takes a core for as long as it may."""
    short, stages = {"score_timeout_s": 3.0}, []
    for what in (*BROKEN, "well"):
        here.spec = SPEC.model_copy(update={"run_timeout_s": 6.0 if what == "flood" else 20.0})
        stages.append(here.stage({"what": what}, short))
    played = await asyncio.gather(*(here.play(stage, member) for member, stage in enumerate(stages)))
    assert played[-1].status is EpisodeStatus.FINISHED, played[-1].reason
    rows = await here.rows()
    for (what, known), attempt, row in zip(BROKEN.items(), played, rows, strict=False):
        reason = f"environment: {known}"
        assert (attempt.status, attempt.outcome, attempt.reason) == (EpisodeStatus.FAILED, None, reason)
        assert attempt.broke, "it is played again by the rules of environments that break"
        assert (row["state"], row["reason"], row["report"]) == ("ended", reason, {})
        if what == "flood":
            assert len(row["output"]) == MOST_OUTPUT
            assert row["output"] in "flood" * MOST_OUTPUT, "its end, wherever the program was cut off"
        else:
            assert row["output"].startswith(f"begins {what}\n"), what
        if what == "raise":
            assert row["output"].endswith("ValueError: no such shop\n")
            assert str(here.home) not in row["output"], "no path of the host"


async def test_a_program_reaches_the_gateway_alone(here: Here) -> None:
    if here.built["manifest"]["sandbox"] != "namespaces":
        pytest.skip("this kernel allows no name spaces: limits alone are tested")
    attempt = await here.does("network")
    assert attempt.reason == "environment: program: OSError: [Errno 101] Network is unreachable"
    assert len(attempt.turns) == 1


async def test_a_program_that_cannot_be_imported_or_begins_too_late_fails_in_its_boot(here: Here) -> None:
    stage, pinned = here.stage(), PinnedProgram(digest=here.built["digest"], entry="told_program:missing")
    stage.programs.spec = stage.programs.spec.model_copy(update={"pinned": pinned})
    attempt = await here.play(stage)
    assert attempt.reason.startswith("environment: boot: AttributeError: module 'told_program' has no attribute")
    here.spec = SPEC.model_copy(update={"boot_timeout_s": 0.01})
    assert (await here.play(here.stage(), 1)).reason == "environment: boot: no answer within 0.01 s"


async def test_a_session_that_is_not_needed_any_more_leaves_no_process(here: Here) -> None:
    stage = here.stage({"what": "children"})
    playing = asyncio.create_task(here.play(stage))
    async with asyncio.timeout(60):
        while len(here.stand.engine.asked) < 1:
            await asyncio.sleep(0.05)
    host = psutil.Process(stage.programs.hosted().process.pid)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    async with asyncio.timeout(90):
        while len(host.children(recursive=True)) > 1:
            await asyncio.sleep(0.05)
    assert (await here.row())["output"] == "begins children\n"


@pytest.mark.full
async def test_the_example_is_built_and_trains_both_of_its_seats(
    store_conn: psycopg.Connection, store_url: str, tmp_path: Path
) -> None:
    order = BuildOrder("sums-program", "", str(sample_program(tmp_path)))
    said = await run_build(tmp_path, order, tmp_path / "log", went_on)
    if said.get("code") == "index_unreachable":
        pytest.skip("the package index cannot be reached")
    [offer] = said["manifest"]["programs"]
    assert (offer["name"], offer["seats"]) == ("sums", ["solver", "reviser"])
    async with standing(store_conn, store_url) as stand:
        here = Here(stand, tmp_path, said)
        stand.engine.texts = ["6", "7", "7", "9"]
        played = [await here.play(here.stage({"hint": "Be brief."}), member) for member in range(2)]
        assert [one.reason for one in played] == ["", ""]
        assert [[turn.role for turn in one.turns] for one in played] == [["solver", "reviser"]] * 2
        assert [one.outcome.team_score for one in played] == [1.0, 0.0]
        assert "Be brief." in stand.engine.asked[0].conversation[-1].content
        print("seconds of a session:", [round(one.finished_at - one.started_at, 2) for one in played])
        await here.rows()


KILLED = """
import asyncio, json, sys
from pathlib import Path
import psutil
from flexmarl.contracts.specification.program import ProcessRunner, ProgramEnvironment
from workers.rollout.gateway.processes import ProgramPool
from workers.rollout.gateway.server import Gateway, GatewayPlace
from workers.rollout.gateway.stage import ProgramStage
from workers.rollout.packages import Builds

async def store(call):
    return []

async def main():
    runner = ProcessRunner.model_validate_json(sys.argv[2])
    gateway = Gateway(GatewayPlace(), store)
    pool = ProgramPool(1, runner, gateway, Builds(Path(sys.argv[1]), store))
    stage = ProgramStage(1, ProgramEnvironment(runner=runner), gateway, pool)
    playing = [asyncio.create_task(stage.begin(n, False, n, (n, 0, 1), len)) for n in range(2)]
    while len(found := psutil.Process().children(recursive=True)) < 8:  # a host has two processes, a session three
        await asyncio.sleep(0.1)
    print(json.dumps([one.pid for one in found]), flush=True)
    await asyncio.gather(*playing)

asyncio.run(main())
"""


async def test_no_process_outlives_a_rollout_worker_that_is_killed(home: Path, built: dict[str, Any]) -> None:
    """Programs have children of their own."""
    if built["manifest"]["sandbox"] != "namespaces":
        pytest.skip("this kernel allows no name spaces: children of programs end with a host that ends by itself alone")
    [offer] = built["manifest"]["programs"]
    pinned = PinnedProgram(digest=built["digest"], entry=offer["entry"])
    runner = ProcessRunner(program="told", options={"what": "orphans"}, pinned=pinned)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(home), runner.model_dump_json(), stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path()},
    )  # fmt: skip
    try:
        found = [psutil.Process(pid) for pid in json.loads(await asyncio.wait_for(worker.stdout.readline(), 60))]
        assert len(found) >= 8
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
        _, left = await asyncio.to_thread(psutil.wait_procs, found, 20)
        assert left == []
    finally:
        if worker.returncode is None:
            worker.kill()
