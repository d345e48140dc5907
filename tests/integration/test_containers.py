"""Commands in containers: real engine, images, gateway and store; tokens are scripted."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from flexmarl.contracts.specification.commands import CommandRunner
from flexmarl.language.dataset_rows import DatasetRow, to_line
from flexmarl.language.messages import Message
from tests.support.commanded import Commands
from tests.support.containers import IMAGE, Engine, group_names, left_groups, made_engine, registry
from tests.support.gateway_stand import standing
from tests.support.machine import wait_for
from workers.containers import ContainerSettings
from workers.rollout.datasets import DatasetLines
from workers.rollout.gateway.processes import NO_CALL
from workers.roots import python_path

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(300)]

ASK = """
wget -q -O said.txt --header "Authorization: Bearer $OPENAI_API_KEY" --header 'Content-Type: application/json' \\
  --post-data '{"model": "agent", "messages": [{"role": "user", "content": "What is 1+1?"}]}' \\
  "$OPENAI_BASE_URL/chat/completions"
"""
PAID = "\necho 0.5 > reward.json"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with made_engine() as engine:
        yield engine


@pytest.fixture
async def here(
    store_conn: psycopg.Connection, store_url: str, tmp_path: Path, engine: Engine
) -> AsyncIterator[Commands]:
    async with standing(store_conn, store_url) as stand:
        made = Commands(stand, tmp_path, {}, ContainerSettings(engine.command, ("localhost:1/pulled",)))
        yield made
        for pool in made.pools:
            await pool.close()


def checked(line: str) -> str:
    """Return a command that fails where a line of it does."""
    return f"set -e\n{ASK}\n{line}\n{PAID}"


WELL: dict[str, dict[str, Any]] = {
    "no rights, no root of the host, and nothing that is written but its own folders": {
        "command": checked(
            """
            test "$(id -u)" = 0
            grep -q '^CapEff:.0000000000000000$' /proc/self/status
            grep -q '^CapBnd:.0000000000000000$' /proc/self/status
            grep -q '^NoNewPrivs:.1$' /proc/self/status
            ! grep -q ' 0 *4294967295$' /proc/self/uid_map
            ! echo x > /bin/x; ! echo x > /etc/x; ! mkdir /x
            echo x > /tmp/x; echo x > $HOME/x; test "$HOME" = /flexmarl
            test ! -e /work; test ! -e /home; test "$(ls /proc | grep -c '^[0-9]')" -lt 6
            test "$PWD" = /workspace
            """
        )
    },
    "no network but the gateway's": {
        "command": checked(
            """
            test "$(grep -c : /proc/net/dev)" = 1; grep -q 'lo:' /proc/net/dev
            ! wget -q -T 3 -O - http://192.0.2.1/
            ! wget -q -T 3 -O - http://127.0.0.1:5432/
            """
        )
    },
    "a folder of the image, and what an evaluator makes of it in the image": {
        "container": {"image": IMAGE, "folder": "/testbed"},
        "command": checked(
            "test $PWD = /testbed; test -e deep/link.txt; grep -q wrong answer.txt; echo right > answer.txt"
        ),
        "evaluator": {
            "type": "evaluate",
            "command": "test -x /bin/busybox && test ! -e reward.json && grep -q right answer.txt && "
            "test -z \"$OPENAI_API_KEY$OWN\" && ! wget -q -T 3 -O - http://127.0.0.1/ || exit 3",
        },
        "env": {"OWN": "{workspace} {task}"},
    },
    "words that no shell reads": {
        "command": ["sh", "-c", checked('test "$1" = "Say \\$(x) /workspace"'), "sh", "Say $(x) {workspace}"],
    },
}  # fmt: skip
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a memory bomb": (
        {"command": f"{ASK}\nX=x; while true; do X=$X$X; done", "memory_mb": 64},
        "program: memory: its processes needed more than 64 MiB",
    ),
    "a fork bomb": (
        {"command": f"{ASK}\nb() {{ b | b & }}; b; while sleep 600 & do :; done; exit 9",
         "container": {"image": IMAGE, "processes": 16}},
        "program: exit code 2",
    ),
    "a full disk": (
        {"command": f"{ASK}\ndd if=/dev/zero of=large bs=1M count=40", "disk_mb": 16}, "program: exit code 1"
    ),
    "a hang": ({"command": f"{ASK}\nsleep 600 & sleep 600"}, "run: the program reported nothing in its time"),
    "an exit code": ({"command": f"{ASK}\nexit 3"}, "program: exit code 3"),
    "no call": ({"command": "true"}, NO_CALL),
    "no program": (
        {"command": ["nowhere", "x"]}, "boot: unknown command: its image has no such program: 'nowhere'"
    ),
    "no image": (
        {"command": ASK, "container": {"image": "localhost/flexmarl/none:1"}},
        "boot: image: localhost/flexmarl/none:1 is not on this host, which may not pull it",
    ),
    "an image that cannot be pulled": (
        {"command": ASK, "container": {"image": "localhost:1/pulled/none:1"}},
        "boot: image: localhost:1/pulled/none:1 cannot be pulled: ",
    ),
    "no folder": (
        {"command": ASK, "container": {"image": IMAGE, "folder": "/nowhere"}},
        "boot: workspace: its image has no folder /nowhere",
    ),
    "a folder that is too large": (
        {"command": ASK, "container": {"image": IMAGE, "folder": "/large"}, "disk_mb": 16},
        "boot: workspace: /large of its image fills the 16 MiB of disk_mb",
    ),
    "a reward that is a link to a file of the host": (
        {"command": f"{ASK}\nln -s /etc/passwd reward.json"},
        "score: none: it returned nothing and wrote no reward.json",
    ),
    "an answer that is a link to a file of the host": (
        {"command": f"{ASK}\nln -s {__file__} said",
         "evaluator": {"type": "scores", "file": "said", "scores": [{"type": "regex", "pattern": "Commands"}]}},
        "score: none: said cannot be read: No such file or directory",
    ),
    "an evaluator that fails": (
        {"command": ASK, "evaluator": {"type": "evaluate", "command": "exit 3"}}, "score: evaluate: exit code 3"
    ),
    "an evaluator that hangs": (
        {"command": ASK, "evaluator": {"type": "evaluate", "command": "sleep 600"}, "score_timeout_s": 10.0},
        "score: no answer within 10 s",
    ),
}  # fmt: skip


async def test_each_way_to_a_reward_and_none_to_a_false_one(
    here: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (started := tmp_path / "started").mkdir()
    monkeypatch.chdir(started)
    known = {**{what: (runner, "") for what, runner in WELL.items()}, **BROKEN}
    here.spec = here.spec.model_copy(update={"run_timeout_s": 40.0, "boot_timeout_s": 120.0})
    common = {"container": {"image": IMAGE}, "score_timeout_s": 60.0}
    stages = [here.stage(mends=False, **{**common, **runner}) for runner, _ in known.values()]
    played = await here.all_of(stages)
    rows = await here.rows_of()
    for (what, (_, reason)), attempt, row in zip(known.items(), played, rows, strict=True):
        if reason:
            assert attempt.reason.startswith(f"environment: {reason}"), f"{what}: {attempt.reason} {row['output']}"
            assert attempt.outcome is None, f"{what}: missing is never 0"
        else:
            assert attempt.reason == "", f"{what}: {attempt.reason} {row['output']}"
            assert attempt.outcome.team_score == (1.0 if "evaluator" in WELL[what] else 0.5), what
    names = lambda: {name_of(one) for one in psutil.Process().children(recursive=True)}  # noqa: E731
    await asyncio.to_thread(wait_for, lambda: not {"sleep", "conmon", "sh"} & names(), 60)
    wait_for(lambda: not left_groups(), 60)
    assert list(started.iterdir()) == [], "the engine leaves nothing where the worker was started"


async def test_tasks_have_images_of_their_own(here: Commands) -> None:
    rows = [DatasetRow((Message("user", "?"),), "2", {"image": image}) for image in (IMAGE, "busybox", IMAGE)]
    lines = tuple(map(to_line, rows))
    here.rows = DatasetLines(lines[:2], lines[2:])
    stage = here.stage({"tasks": 2, "held_out": 1}, mends=False, container={"column": "image"}, command=ASK + PAID)
    well, short = await here.play(stage, 0), await here.play(stage, 1)
    assert well.reason == ""
    assert short.reason.startswith("environment: boot: image: 'busybox' is no whole name of an image. Write a registry")


async def test_images_whose_names_begin_as_the_operator_says_are_pulled(
    store_conn: psycopg.Connection, store_url: str, tmp_path: Path, engine: Engine
) -> None:
    with registry(engine, tmp_path) as (trusting, address):
        async with standing(store_conn, store_url) as stand:
            made = Commands(stand, tmp_path, {}, ContainerSettings(trusting.command, (f"{address}/acme/",)))
            names = [f"{address}/acme/agent:2", f"{address}/acme/agent:2", f"{address}/acme/nobody:1", f"{address}/x:1"]
            stages = [made.stage(mends=False, container={"image": name}, command=ASK + PAID) for name in names]
            played = await made.all_of(stages)
            rows = await made.rows_of()
    assert [one.reason for one in played[:2]] == ["", ""]
    assert {row["image"].partition("@")[0] for row in rows[:2]} == {names[0]}
    assert played[2].reason.startswith(f"environment: boot: image: {names[2]} cannot be pulled: ")
    assert played[3].reason.startswith(
        f"environment: boot: image: {names[3]} is not on this host, which may not pull it"
    )


async def test_a_host_without_an_engine_says_so(store_conn: psycopg.Connection, store_url: str, tmp_path: Path) -> None:
    async with standing(store_conn, store_url) as stand:
        for setting, reason in (
            ("none", "FLEXMARL_CONTAINER_ENGINE is none"),
            ("nowhere --x", "nowhere is not installed"),
        ):
            made = Commands(stand, tmp_path, {}, ContainerSettings(setting))
            attempt = await made.play(made.stage(mends=False, container={"image": IMAGE}, command=ASK))
            assert attempt.reason.startswith(f"environment: boot: container: this host starts none: {reason}")


def name_of(process: psutil.Process) -> str:
    """Return what a process is called; nothing for one that has just ended."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


async def test_a_command_runs_in_its_image(here: Commands, engine: Engine) -> None:
    attempt = await here.play(here.stage(mends=False, container={"image": IMAGE}, command=ASK + PAID))
    assert (attempt.reason, attempt.outcome and attempt.outcome.team_score) == ("", 0.5)
    row = await here.row()
    assert (row["state"], row["report"], len(here.stand.engine.asked)) == ("finished", {"reward": 0.5}, 1)
    assert row["image"].startswith("localhost/flexmarl/agent:1@sha256:")
    assert [one["path"] for one in row["changes"]["files"]] == ["reward.json", "said.txt"]


KILLED = """
import asyncio, contextlib, json, sys
from pathlib import Path
import psutil
from flexmarl.contracts.specification.commands import CommandRunner
from flexmarl.contracts.specification.program import ProgramEnvironment
from workers.containers import ContainerSettings
from workers.rollout.gateway.commands import CommandPool
from workers.rollout.gateway.images import Images
from workers.rollout.gateway.server import Gateway, GatewayPlace
from workers.rollout.gateway.stage import ProgramStage
from workers.rollout.packages import Builds

async def store(call):
    return []

def lasting():
    '''The processes of containers and those that keep them, by name: the engine's own come and go.'''
    found = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append((one.name(), one.pid))
    return [own for own in found if own[0] in ("conmon", "sleep")]

async def main():
    runner = CommandRunner.model_validate_json(sys.argv[2])
    gateway = Gateway(GatewayPlace(), store)
    pool = CommandPool(1, runner, gateway, Builds(Path(sys.argv[1]), store), Images(ContainerSettings(sys.argv[3])))
    stage = ProgramStage(1, ProgramEnvironment(runner=runner), gateway, pool)
    playing = [asyncio.create_task(stage.begin(n, False, n, (n, 0, 1), len)) for n in range(2)]
    while sum(name == "sleep" for name, _ in lasting()) < 4:
        await asyncio.sleep(0.1)
    print(json.dumps(lasting()), flush=True)
    await asyncio.gather(*playing)

asyncio.run(main())
"""


async def test_no_container_outlives_a_rollout_worker_that_is_killed(
    here: Commands, engine: Engine, tmp_path: Path
) -> None:
    """The kernel ends its processes, and the next container removes its control groups."""
    hangs = {"command": "(setsid sleep 600 &); sleep 600", "container": {"image": IMAGE}}
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(tmp_path), CommandRunner.model_validate(hangs).model_dump_json(),
        engine.command, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": python_path()},
    )  # fmt: skip
    try:
        told = json.loads(await asyncio.wait_for(worker.stdout.readline(), 120))
        assert {name for name, _ in told} == {"conmon", "sleep"}
        found = [psutil.Process(pid) for _, pid in told]
        rooms = [one for one in psutil.Process(worker.pid).children(recursive=True) if str(one.pid) in group_names()]
        assert len(rooms) == 2
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
        _, left = await asyncio.to_thread(psutil.wait_procs, [*found, *rooms], 60)
        assert left == []
    finally:
        if worker.returncode is None:
            worker.kill()
    attempt = await here.play(here.stage(mends=False, container={"image": IMAGE}, command=ASK + PAID))
    assert attempt.reason == ""
    assert (await here.row())["state"] == "finished"
    wait_for(lambda: not left_groups(), 60)
