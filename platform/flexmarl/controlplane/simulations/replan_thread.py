"""Looks at running runs, one after the other, and applies what is proposed to those that ask for it."""

import threading
from uuid import UUID

import psycopg
import structlog
from django.db import connection
from django.db.utils import Error as DatabaseError

from flexmarl.controlplane.simulations.choices import ReplanState
from flexmarl.controlplane.simulations.replan_actions import apply_for_owner
from flexmarl.controlplane.simulations.replanning import due, look

log = structlog.get_logger(__name__)
LOOK_S = 5.0
"""Between two looks for runs to look at."""


def look_and_apply(run_id: UUID) -> None:
    """Look at a run; where it is proposed other devices, and its specification says so, have it go on with them."""
    row = look(run_id)
    if row is None or row.state != ReplanState.PROPOSED or row.run.spec["resources"].get("replan") != "apply":
        return
    if (made := apply_for_owner(row.run)) is not None:
        log.info("goes_on_with_other_devices", run=row.run.key, into=made.key)


class ReplanningThread(threading.Thread):
    """Looks at running runs until told to end. A database that goes away is waited for."""

    def __init__(self) -> None:
        super().__init__(name="replanning", daemon=True)
        self._stopping = threading.Event()

    def run(self) -> None:
        """Look every `LOOK_S`, at one run after the other."""
        while not self._stopping.wait(LOOK_S):
            try:
                for run_id in due():
                    if self._stopping.is_set():
                        break
                    look_and_apply(run_id)
            except (DatabaseError, psycopg.OperationalError) as error:
                log.warning("database_lost", error=str(error))
                connection.close()
            except Exception:  # the thread outlives any fault: other runs would never be looked at
                log.exception("replanning_failed")
        connection.close()

    def stop(self) -> None:
        """End after the run that is looked at."""
        self._stopping.set()
        self.join(5)
