"""The one process that provides hosts, as a thread of another or by itself: rounds under a lock of the database.

A round comes every `ROUND_S`, and at once when a request for devices begins to wait or the round before has changed
something: a host that was asked for is submitted then. A hint that is lost costs no more than that pause.
"""

import shutil
import threading
import time
from collections.abc import Callable

import psycopg
import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection
from psycopg import Connection

from flexmarl.controlplane.common.store import database_url
from flexmarl.controlplane.runs.providing.loop import Providing
from flexmarl.store.connection import connect
from flexmarl.store.control.command_rows import DEMANDS

log = structlog.get_logger(__name__)
ROUND_S = 2.0
STOPS_S = 0.5
"""So soon a pause ends when the process is to stop."""


def can_submit() -> bool:
    """Tell whether hosts can be asked of a cluster from this machine."""
    if settings.RAY_PYTHON or settings.KUBECONFIG or settings.IN_KUBERNETES:
        return True
    return shutil.which("sbatch", path=settings.COMMAND_ENVIRONMENT.get("PATH")) is not None


def provide(stopping: threading.Event, turned: Callable[[], None]) -> None:
    """Provide until stopped, round after round; a database that goes away is waited for."""
    while not stopping.is_set():
        try:
            url = database_url()
            with connect(url, "flexmarl.provide") as conn, connect(url, "flexmarl.provide.listen") as ear:
                ear.execute(f"LISTEN {DEMANDS}")
                _provide(Providing(conn), ear, stopping, turned)
        except (psycopg.Error, DatabaseError) as error:
            log.warning("database_lost", error=str(error).strip())
            connection.close()
            turned()
            stopping.wait(ROUND_S)


def _provide(providing: Providing, ear: Connection, stopping: threading.Event, turned: Callable[[], None]) -> None:
    while not stopping.is_set():
        turned()
        if providing.owns():
            again = False
            while not stopping.is_set():
                turned()
                again = providing.round() and not again  # once: what changes at every round gets its pauses
                if not again:
                    _rest(ear, stopping)
        stopping.wait(ROUND_S)


def _rest(ear: Connection, stopping: threading.Event) -> None:
    """Wait until the next round is due, or a request for devices waits."""
    until = time.monotonic() + ROUND_S
    while not stopping.is_set() and (left := until - time.monotonic()) > 0.0:
        if any(True for _ in ear.notifies(timeout=min(left, STOPS_S), stop_after=1)):
            return


class ProvidingThread(threading.Thread):
    """Provides hosts until stopped, beside other work of its process."""

    def __init__(self, turned: Callable[[], None]) -> None:
        super().__init__(name="providing", daemon=True)
        self._stopping, self._turned = threading.Event(), turned

    def run(self) -> None:
        """Work until stopped."""
        provide(self._stopping, self._turned)

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
