"""SIGKILL of the driver exactly between the points of a step: accumulated, step decided, taken, done, served.

Triggers in the test's database stop a transaction at the row that is the point, by an advisory lock the test holds;
the driver is killed while it stands there. The product knows nothing of it.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from flexmarl.launcher.processes import wait_until
from tests.chaos.test_random_kills import SPEC, assert_nothing_lost_or_repeated
from tests.support.ended import ended
from tests.support.system import System

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.services, pytest.mark.timeout(1500)]

ALL_POINTS = (
    "event:group_settled",
    "event:micro_batch_accumulated",
    "command:optimizer_step",
    "taken:optimizer_step",
    "policy_version:",
    "event:step_committed",
    "command:load_weights",
    "taken:load_weights",
    "event:weights_served",
    "command:play_groups",
)
"""In the order of a step. `event` and `command` stand inside the driver's own transaction, which dies with it; the
others inside a node's, which goes on without a driver."""
POINTS = ALL_POINTS
ENDLESS = 1_000_000
"""Train steps of a run that is stopped behind the last point."""
REACHED_S = 120.0

TRIGGERS = """
CREATE FUNCTION halt_at() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(hashtext(TG_ARGV[0] || ':' ||
    CASE WHEN TG_ARGV[0] = 'policy_version' THEN '' ELSE to_jsonb(NEW) ->> 'kind' END));
  RETURN NEW;
END $$;
CREATE TRIGGER halt_event BEFORE INSERT ON store.event FOR EACH ROW EXECUTE FUNCTION halt_at('event');
CREATE TRIGGER halt_command BEFORE INSERT ON store.command FOR EACH ROW EXECUTE FUNCTION halt_at('command');
CREATE TRIGGER halt_taken BEFORE UPDATE ON store.command FOR EACH ROW
  WHEN (OLD.status = 'open' AND NEW.status = 'taken') EXECUTE FUNCTION halt_at('taken');
CREATE TRIGGER halt_version BEFORE INSERT ON store.policy_version FOR EACH ROW
  EXECUTE FUNCTION halt_at('policy_version');
"""


@contextmanager
def halted(conn: psycopg.Connection, point: str, begin: Callable[[], object] = bool) -> Iterator[None]:
    """Hold whoever comes to a point there, until the block ends; it begins when somebody came.

    What is to be met at its first coming is begun by `begin`, once the point is held.
    """
    number = conn.execute("SELECT hashtext(%s)", [point]).fetchone()[0]
    conn.execute("SELECT pg_advisory_lock(%s)", [number])
    try:
        begin()
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
        came = wait_until(lambda: conn.execute(waiting, [number % 2**32]).fetchone()[0] > 0, REACHED_S)
        assert came, f"nobody came to {point}"
        yield
    finally:
        conn.execute("SELECT pg_advisory_unlock(%s)", [number])


def test_a_driver_killed_between_any_two_points_of_a_step_costs_nothing(system: System) -> None:
    api = system.api()
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        conn.execute(TRIGGERS.encode())
        spec = {**SPEC, "budget": {"train_steps": ENDLESS, "target": None}}
        run_id = api.create_run(name="kill points", spec=spec)["id"]
        api.wait(run_id, lambda run: run["step"] >= 2, 300)
        for point in POINTS:
            driver = system.processes()["driver"]
            with halted(conn, point):
                os.kill(driver, signal.SIGKILL)
                assert wait_until(lambda driver=driver: ended(driver), 60)
            step = api.run(run_id)["step"]
            began = time.monotonic()
            run = api.wait(run_id, lambda run, step=step: run["step"] >= step + 2, 300)
            print(f"{point:30} at step {step:3}, two steps later after {time.monotonic() - began:.2f} s", flush=True)
        conn.execute("DROP FUNCTION halt_at CASCADE")
    api.act(run_id, "stop")
    last, run = run["step"], api.finish(run_id, 300)
    assert run["status"] == "stopped", run["reason_text"]
    assert run["step"] >= last
    assert_nothing_lost_or_repeated(system, api, run)


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)
