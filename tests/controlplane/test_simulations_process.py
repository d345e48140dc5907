"""The process that plays simulations, killed in the midst of one: the next one plays it to its end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from flexmarl.controlplane.simulations.models import Simulation

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120.0
LONG = {
    "workload": "long_tail",
    "presets": ["sync"],
    "steps": 2,
    "seeds": 20,
    "changes": ["spec.batch.tasks_per_step=8"],
}
"""Many short ones, so that it is killed between its first and its last."""


def started() -> "subprocess.Popen[bytes]":
    settings = connection.settings_dict
    url = f"postgresql://{settings['USER']}:{settings['PASSWORD']}@{settings['HOST']}:{settings['PORT']}/{settings['NAME']}"
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.test"}
    return subprocess.Popen([sys.executable, str(ROOT / "manage.py"), "simulations"], env=environment, cwd=ROOT)


def wait_for(reached: Callable[[Simulation], bool], key: str) -> Simulation:
    until = time.monotonic() + WAIT_S
    while not reached(row := Simulation.objects.get(pk=key)):
        assert time.monotonic() < until, (row.state, row.done, row.takes, row.reason_text)
        time.sleep(0.05)
    return row


@pytest.mark.django_db(transaction=True)
def test_what_a_killed_process_played_is_played_by_the_next(api: Any) -> None:
    made = api.post("/api/v1/simulations", LONG, format="json", HTTP_IDEMPOTENCY_KEY="k").json()
    first = started()
    try:
        row = wait_for(lambda row: row.done >= 1, made["id"])
        assert (row.state, row.takes) == ("running", 1)
        first.send_signal(signal.SIGKILL)
        first.wait(30)
        assert Simulation.objects.get(pk=made["id"]).state == "running"
        second = started()
        try:
            row = wait_for(lambda row: row.state == "done", made["id"])
            assert row.takes == 2
            assert [len(one["seeds"]) for one in row.result["presets"].values()] == [20]
            second.send_signal(signal.SIGTERM)
            assert second.wait(30) == 0
        finally:
            second.kill()
    finally:
        first.kill()
