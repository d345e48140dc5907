"""The one process that provides hosts, as a thread of another or by itself: rounds under a lock of the database."""

import shutil
import threading
from collections.abc import Callable

import psycopg
import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection

from flexmarl.controlplane.common.store import database_url
from flexmarl.controlplane.runs.providing.loop import Providing
from flexmarl.store.connection import connect

log = structlog.get_logger(__name__)
ROUND_S = 2.0


def can_submit() -> bool:
    """Tell whether hosts can be asked of a cluster from this machine."""
    if settings.RAY_PYTHON or settings.KUBECONFIG or settings.IN_KUBERNETES:
        return True
    return shutil.which("sbatch", path=settings.COMMAND_ENVIRONMENT.get("PATH")) is not None


def provide(stopping: threading.Event, turned: Callable[[], None]) -> None:
    """Provide until stopped, round after round; a database that goes away is waited for."""
    while not stopping.is_set():
        try:
            with connect(database_url(), "flexmarl.provide") as conn:
                _provide(Providing(conn), stopping, turned)
        except (psycopg.Error, DatabaseError) as error:
            log.warning("database_lost", error=str(error).strip())
            connection.close()
            turned()
            stopping.wait(ROUND_S)


def _provide(providing: Providing, stopping: threading.Event, turned: Callable[[], None]) -> None:
    while not stopping.is_set():
        turned()
        if providing.owns():
            while not stopping.is_set():
                turned()
                providing.round()
                stopping.wait(ROUND_S)
        stopping.wait(ROUND_S)


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
