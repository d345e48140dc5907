"""The commands of docs/operations.md on a running installation: dumped, archived, restored elsewhere, and it goes on.

Between dump and archive the run takes more steps than versions are kept, so that what the dump names would be gone
from the home without the hold.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.counting import assert_accounted
from tests.support.system import ROOT, TERMINAL, Api, System
from workers.training.version_store import RESTORABLE

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(900)]

SPEC: dict[str, Any] = {
    "batch": {"tasks_per_step": 2, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 2},
    "environment": {"latency": {"scale_s": 0.2, "sigma": 0.0}},
    "evaluation": {"every_steps": 1000, "tasks": 2},
    "budget": {"train_steps": 100_000, "target": None},
    "checkpoints": {"every_steps": 2, "keep_last": 1, "keep_best": 0},
}
"""Of small steps with waits between them: it lasts as long as the commands do, which have the cores meanwhile."""
SERVICES_ONLY = ".venv/bin/python manage.py up --services-only"


def documented(heading: str) -> list[str]:
    """Return the blocks of commands below a heading of the page on operations."""
    page = (ROOT / "docs" / "operations.md").read_text()
    section = re.split(r"^#+ ", page.partition(f"{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", section, re.MULTILINE | re.DOTALL)
    return ["\n".join(line.strip() for line in block.splitlines()) for block in blocks]


def follow(commands: str, home: Path, backup: Path) -> None:
    """Carry out commands in a shell, in the checkout, as a person does; the first that fails is told."""
    environment = {name: value for name, value in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}}
    environment |= {"FLEXMARL_HOME": str(home), "BACKUP": str(backup)}
    shell = ["bash", "-eu", "-c", commands]
    done = subprocess.run(shell, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"


def test_a_running_installation_is_restored_from_its_dump_and_its_files(short_tmp: Path) -> None:
    backup = short_tmp / "backup"
    backup.mkdir()
    [made] = documented("## Backups")
    unpack, servers, load = documented("### Restore")
    assert servers == SERVICES_ONLY
    with System(short_tmp / "first") as first:
        api = first.api()
        run = api.create_run(name="kept", template="reference_game", spec=SPEC)
        api.wait(run["id"], lambda found: found["step"] >= 3, 240)
        assert api.post(f"/runs/{run['id']}/checkpoints/2/actions/pin")["pinned"]
        archive = api.download(f"/runs/{run['id']}/checkpoints/2/archive", short_tmp / "before")
        hold_and_dump, separator, rest = made.partition("tar ")
        follow(hold_and_dump, first.home, backup)
        dumped = api.run(run["id"])["step"]
        api.wait(run["id"], lambda found: found["step"] >= dumped + RESTORABLE + 3, 240)
        follow(separator + rest, first.home, backup)
        assert not (first.home / "backup-hold").exists()
    second = System(short_tmp / "second")
    second.home.parent.mkdir(exist_ok=True)
    follow(unpack, second.home, backup)
    with System(second.home, options=("--services-only",)):
        follow(load, second.home, backup)
    with second:
        restored = Api(second.url, first.token)
        came_with = restored.run(run["id"])["step"]
        assert came_with <= dumped
        again = restored.download(f"/runs/{run['id']}/checkpoints/2/archive", short_tmp / "after")
        assert contents(again) == contents(archive)
        restored.wait(run["id"], lambda found: found["step"] >= dumped + 3 or found["status"] in TERMINAL, 240)
        restored.act(run["id"], "stop")
        ended = restored.finish(run["id"], 180)
        assert ended["status"] == "stopped", ended["reason_text"]
        assert restored.consistency(run["id"])["ok"], restored.consistency(run["id"])
        with psycopg.connect(second.database_url, autocommit=True) as conn:
            assert_accounted(conn, ended["no"])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
