"""Payload segments are struck while a run trains from them: torn, damaged, with rubbish behind, or gone.

What no row names may be torn and lost, and nobody notices. What a row names is compared with its digest at every read,
so that damage is told by name and never trained on; bytes that were trained already may go.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from flexmarl.launcher.processes import wait_until
from tests.support.chaos import Store
from tests.support.counting import Tally, assert_accounted, faults, tally
from tests.support.forms import form
from tests.support.system import System

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(1500)]

STEPS = 8
ENDLESS = 1_000_000
"""A run that is struck has steps left, however long the strike waited for its processor."""
SPEC = {
    "agents": {"speaker": {}, "listener": {}},
    "environment": {"type": "reference_game"},
    "batch": {"tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 16, "rollout_groups": 2},
    "evaluation": {"every_steps": 100, "tasks": 4},
    "budget": {"train_steps": STEPS, "target": None},
}
NAMED = """
SELECT lpad(to_hex(s.segment), 16, '0'),
  max(s.seg_offset + 4 * (s.n_prompt + 2 * s.n_response + CASE WHEN s.n_allowed < 0 THEN 1 ELSE s.n_allowed END))
FROM store.sample s WHERE s.run_id = %s AND s.segment IS NOT NULL GROUP BY 1
"""
WRITERS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'flexmarl rollout worker'"
UNREAD = "SELECT no FROM store.micro_batch WHERE run_id = %s AND status = 'cut'"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = tmp_path_factory.mktemp("segments") / "home"
    with System(home, environment={"FLEXMARL_PAYLOAD_BY_VALUE_BYTES": "16"}) as system:
        yield system


def segments(system: System) -> list[Path]:
    return sorted(system.home.glob("payloads/run-*/*.segment"))


def ends(store: Store) -> dict[str, int]:
    """Return where the last payload that a row names ends, by segment."""
    return dict(store.read(NAMED, store.run_no))


def test_what_no_row_names_may_be_torn_off_or_be_rubbish(system: System) -> None:
    """A worker dies between its flush and its rows: a tail that nobody names is left, whole or torn."""
    assert system.process is not None
    api = system.api()
    run = api.create_run(name="torn", spec=SPEC)
    store = Store(system, run["no"])
    api.wait(run["id"], lambda run: run["step"] >= 3, 300)
    supervisor, worker = system.process, system.processes()["rollout-worker"]
    supervisor.send_signal(signal.SIGSTOP)  # no successor writes meanwhile
    try:
        os.kill(worker, signal.SIGKILL)
        assert wait_until(lambda: not store.read(WRITERS), 30), "the server ends what its dead client left"
        named = ends(store)
        assert named, "payloads lie in segments"
        for number, path in enumerate(segments(system)):
            end = named.get(path.stem, 0)
            os.truncate(path, end)
            if number % 2 == 0:
                with path.open("ab") as file:
                    file.write(os.urandom(777))
    finally:
        supervisor.send_signal(signal.SIGCONT)
    done = api.finish(run["id"], 600)
    assert (done["status"], done["step"]) == ("completed", STEPS), done["reason_text"]
    with psycopg.connect(system.database_url) as conn:
        assert_accounted(conn, run["no"])


@pytest.mark.parametrize("how", form(short=["torn"], full=["damaged", "torn", "gone"]))
def test_what_a_row_names_is_never_trained_damaged(system: System, how: str) -> None:
    """Rows are struck between being written and read: the node, which reads them for the trainer, stands still.

    The supervisor stands still as well, for as long: it replaces a node that stands.
    """
    assert system.process is not None
    api = system.api()
    run = api.create_run(name=how, spec=SPEC | {"budget": {"train_steps": ENDLESS, "target": None}})
    store = Store(system, run["no"])
    api.wait(run["id"], lambda run: run["step"] >= 3, 300)
    node = system.processes()["node"]
    system.process.send_signal(signal.SIGSTOP)
    try:
        assert wait_until(lambda: stopped_before_reading(node, store, run["no"]), 180), "no rows wait for their trainer"
        applied = tally_of(system, run["no"]).applied
        for path in segments(system):
            if path.parent.name == f"run-{run['no']}":
                strike(path, how)
    finally:
        os.kill(node, signal.SIGCONT)
        system.process.send_signal(signal.SIGCONT)
    done = api.finish(run["id"], 600)
    assert done["status"] == "failed", done["reason_text"]
    assert "payload" in done["reason_text"], done["reason_text"]
    found = tally_of(system, run["no"])
    assert faults(found, complete=False) == []
    assert found.applied >= applied


def stopped_before_reading(node: int, store: Store, run_no: int) -> bool:
    """Stop the node while rows are still being played, so that it has read none of those that are cut next.

    Between two tries it goes on for a while that differs: the moment at which nothing is played is left behind.
    """
    time.sleep(random.uniform(0.2, 1.2))
    os.kill(node, signal.SIGSTOP)
    if not store.read(UNREAD, run_no) and wait_until(lambda: bool(store.read(UNREAD, run_no)), 3):
        return True
    os.kill(node, signal.SIGCONT)
    return False


def tally_of(system: System, run_no: int) -> Tally:
    with psycopg.connect(system.database_url) as conn:
        return tally(conn, run_no)


def strike(path: Path, how: str) -> None:
    if how == "gone":
        path.unlink()
    elif how == "torn":
        os.truncate(path, 0)
    else:
        body = bytearray(path.read_bytes())
        path.write_bytes(bytes(byte ^ 0xFF for byte in body))
