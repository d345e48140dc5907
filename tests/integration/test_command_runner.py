"""Commands that a rollout worker starts: real build, sandboxes, gateway and store; tokens are scripted."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from flexmarl.contracts.package_manifests import PackageManifest
from flexmarl.contracts.wire import EpisodeStatus
from flexmarl.language.dataset_rows import DatasetRow, to_line
from flexmarl.language.messages import Message
from tests.support.builds import went_on
from tests.support.commanded import RIGHT, WRONG, Commands, fix_bugs
from tests.support.gateway_stand import standing
from workers.packages.building import BuildOrder
from workers.packages.running import run_build
from workers.rollout.datasets import DatasetLines
from workers.rollout.gateway.processes import NO_CALL

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(300)]

DIFF = """\
--- a/answer.py
+++ b/answer.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def built(home: Path) -> dict[str, Any]:
    """The one build that the tests share."""
    name, body = fix_bugs()
    path = home / name
    path.write_bytes(body)
    return asyncio.run(run_build(home, BuildOrder("fix-bugs", "", str(path)), home / "log", went_on))


@pytest.fixture
async def here(
    store_conn: psycopg.Connection, store_url: str, home: Path, built: dict[str, Any]
) -> AsyncIterator[Commands]:
    async with standing(store_conn, store_url) as stand:
        made = Commands(stand, home, built)
        yield made
        for pool in made.pools:
            await pool.close()


@pytest.fixture
async def bare(store_conn: psycopg.Connection, store_url: str, tmp_path: Path) -> AsyncIterator[Commands]:
    """Commands of the host alone, which need no build."""
    async with standing(store_conn, store_url) as stand:
        made = Commands(stand, tmp_path, {})
        yield made
        for pool in made.pools:
            await pool.close()


def test_a_manifest_names_commands(built: dict[str, Any]) -> None:
    manifest = PackageManifest.model_validate(built["manifest"])
    assert [one.name for one in manifest.commands] == ["fix"]


async def test_a_command_mends_a_file_and_hidden_tests_pay_it(here: Commands) -> None:
    attempt = await here.does(RIGHT)
    assert attempt.status is EpisodeStatus.FINISHED, attempt.reason
    assert attempt.outcome.scores == {"agent": 1.0}
    [asked] = here.stand.engine.asked
    assert "add(a, b) shall return the sum." in asked.conversation[-1].content
    row = await here.row()
    assert (row["state"], row["report"], row["calls"]) == ("finished", {"reward": 1.0}, 1)
    assert row["output"].startswith("answer.py: mended\n")
    assert row["changes"] == {
        "files": [{"path": "answer.py", "change": "changed", "size": 32, "before": 32, "shown": True}],
        "count": 1, "cut": False,
        "diff": DIFF,
    }  # fmt: skip


async def test_a_wrong_answer_is_worth_nothing(here: Commands) -> None:
    attempt = await here.does(WRONG)
    assert attempt.outcome.scores == {"agent": 0.0}, attempt.reason


async def test_a_command_that_is_not_there_is_refused_by_name(here: Commands) -> None:
    attempt = await here.does(command=["fixx", "answer.py"])
    assert attempt.reason.startswith(
        "environment: boot: unknown command: 'fixx' is not a program of its package or of the host; its package's: "
        "fix, "
    )
    folder = await here.does(workspace={"folder": "fix_bugs/bugs/none"})
    assert folder.reason.startswith("environment: boot: workspace: its package has neither a folder nor an archive")


ASK = """
python3 - <<'END'
import json, os, urllib.request
body = {"model": "agent", "messages": [{"role": "user", "content": open(os.environ["FLEXMARL_PROMPT"]).read()}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"], file=open("said.txt", "w"))
END
"""
PAID = "\necho 0.5 > reward.json"
SAYS = {"type": "scores", "file": "said.txt", "scores": [{"type": "regex", "pattern": "answer"}]}


def evaluated(line: str, **settings: Any) -> dict[str, Any]:
    return {"command": ASK, "evaluator": {"type": "evaluate", "command": line, **settings}}


WELL: dict[str, tuple[dict[str, Any], float]] = {
    "a file of the reward": ({"command": ASK + PAID}, 0.5),
    "a child with a session of its own": (
        {"command": f"{ASK}\nsetsid -w sh -c 'sleep 2.5; echo 0.75 > reward.json'"}, 0.75
    ),
    "an exit status of nothing": (evaluated("exit 2", worthless=[1, 2]), 0.0),
    "a reward that the evaluator writes": (evaluated("echo 0.25 > reward.json; exit 1"), 0.25),
    "a score of a file": ({"command": ASK, "evaluator": SAYS}, 1.0),
    "a score of a file that is wrong": (
        {"command": f"{ASK}\necho no > said.txt", "evaluator": SAYS}, 0.0
    ),
    "a score of what was said last": ({"command": ASK, "evaluator": {**SAYS, "of": "last_message", "file": ""}}, 1.0),
    "an evaluator without keys, network, processes or rewards of the agent": (
        {
            "command": f"{ASK}\necho 0.1 > reward.json; (setsid sleep 600 &) ; echo left > left.txt",
            "evaluator": {
                "type": "evaluate",
                "command": "test ! -e reward.json && test -z \"$OPENAI_API_KEY$ANTHROPIC_API_KEY$OWN\" && "
                "! env | grep -q fms_ && grep -q left left.txt && ! grep -qs sleep /proc/[0-9]*/comm && "
                "test \"$(cat $FLEXMARL_PROMPT)\" = 'Say {x} or $(x).'",
            },
            "env": {"OWN": "{key}"},
        },
        1.0,
    ),
}  # fmt: skip
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no reward": ({"command": ASK}, "score: none: it returned nothing and wrote no reward.json"),
    "no file": (
        {"command": ASK, "evaluator": {**SAYS, "file": "answer.txt"}},
        "score: none: answer.txt cannot be read: No such file or directory",
    ),
    "too much": ({"command": f"{ASK}\necho 7 > reward.json"}, "score: reward: send a number from 0 to 1"),
    "an evaluator that fails": (evaluated("exit 3"), "score: evaluate: exit code 3"),
    "an evaluator that is killed": (evaluated("kill -9 $$"), "score: evaluate: ended by signal 9 (Killed)"),
    "an evaluator that is not there": (
        {"command": ASK, "evaluator": {"type": "evaluate", "command": ["nowhere"]}},
        "score: evaluate: unknown command: 'nowhere' is not a program of the host, and the runner names no package",
    ),
    "an evaluator that hangs": (
        {**evaluated("sleep 600"), "score_timeout_s": 4.0},
        "score: no answer within 4 s",
    ),
    "an exit code": ({"command": f"{ASK}\nexit 3"}, "program: exit code 3"),
    "a signal": ({"command": f"{ASK}\nkill -9 $$"}, "program: ended by signal 9 (Killed)"),
    "a hang": ({"command": f"{ASK}\nsleep 600"}, "run: the program reported nothing in its time"),
    "no call": ({"command": "true"}, NO_CALL),
    "no program": (
        {"command": ["nowhere"]},
        "boot: unknown command: 'nowhere' is not a program of the host, and the runner names no package",
    ),
    "a prompt that is not there": (
        {"command": ASK, "prompt": "", "prompt_file": "PROMPT.md"},
        "boot: prompt: PROMPT.md cannot be read: No such file or directory",
    ),
    "a workspace that is too large": (
        {**evaluated("true"), "command": f"{ASK}\ntruncate -s 40000000 large", "disk_mb": 16},
        "score: workspace: it has more than",
    ),
}


async def test_each_way_to_a_reward_and_none_to_a_false_one(bare: Commands) -> None:
    """All at once: none of it touches another session."""
    known = {**{what: (runner, "") for what, (runner, _) in WELL.items()}, **BROKEN}
    bare.spec = bare.spec.model_copy(update={"run_timeout_s": 30.0})
    prompted = {"prompt": "Say {x} or $(x).", "score_timeout_s": 60.0}
    stages = [bare.stage(mends=False, **{**prompted, **runner}) for runner, _ in known.values()]
    played = await bare.all_of(stages)
    for (what, (_, reason)), attempt in zip(known.items(), played, strict=True):
        if reason:
            assert attempt.reason.startswith(f"environment: {reason}"), what
            assert attempt.outcome is None, f"{what}: missing is never 0"
        else:
            assert (attempt.reason, attempt.outcome.team_score) == ("", WELL[what][1]), what
    assert {one.conversation[-1].content for one in bare.stand.engine.asked} == {"Say {x} or $(x)."}
    rows = await bare.rows_of()
    assert len(rows) == len(known)
    for (what, _), row in zip(known.items(), rows, strict=True):
        if what not in ("no program", "a prompt that is not there", "no call"):
            assert "said.txt" in [one["path"] for one in row["changes"]["files"]], what
    left = [name_of(one) for one in psutil.Process().children(recursive=True)]
    assert not {"sleep", "python3"} & set(left), "no process outlives its session"


def name_of(process: psutil.Process) -> str:
    """Return what a process is called; nothing for one that has just ended."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


async def test_rows_of_a_dataset_are_tasks_files_and_answers(bare: Commands) -> None:
    rows = [
        DatasetRow((Message("user", f"What is {n}+1?"),), str(n + 1), {"note": f"row {n}", "many": [n]})
        for n in range(3)
    ]
    lines = tuple(map(to_line, rows))
    bare.rows = DatasetLines(lines[:2], lines[2:])
    runner = {
        "command": f"{ASK}\ncat note.txt many.json",
        "workspace": {"columns": {"note.txt": "note", "many.json": "many"}},
        "evaluator": {"type": "scores", "file": "said.txt", "scores": [{"type": "math"}, {"type": "contains"}]},
    }
    stage = bare.stage({"tasks": 2}, mends=False, **runner)
    bare.stand.engine.texts = ["2", "7", "3"]
    played = [await bare.play(stage, 1), await bare.play(stage, 0), await bare.play(stage, 0, held_out=True)]
    assert [(one.reason, one.outcome.team_score) for one in played] == [("", 1.0), ("", 0.0), ("", 1.0)]
    asked = [one.conversation[-1].content for one in bare.stand.engine.asked]
    assert asked == ["What is 1+1?", "What is 0+1?", "What is 2+1?"]
    assert played[2].task["facts"]["question"] == "What is 2+1?"
    assert [row["output"] for row in await bare.rows_of()] == ["row 1[1]", "row 0[0]", "row 2[2]"]
    missing = await bare.play(bare.stage({"tasks": 2}, mends=False, **{**runner, "workspace": {"columns": {"a": "b"}}}))
    assert missing.reason == (
        "environment: boot: workspace: the row has no column b; its columns: question, answer, many, note"
    )
