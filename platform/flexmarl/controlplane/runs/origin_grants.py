"""The right to another run's weights, looked at again until they are read.

Invariants: it is the owner of the new run whose right counts, as it is now: a role that was taken, a person who left
and a run that is gone all end it. A right is noted with its time; nodes read nothing on a note that is old, so a
control plane that stands still grants nothing.
"""

import threading
from uuid import UUID

import structlog
from django.db import Error as DatabaseError
from django.db import close_old_connections

from flexmarl.controlplane.accounts.queries import current_actor
from flexmarl.controlplane.common.problems import PermissionDenied
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.control import model_rows
from flexmarl.store.data import lineage

log = structlog.get_logger(__name__)

LOOK_S = 2.0


def renew() -> None:
    """Look at the rights of every started run that still waits for another run's weights, and of every model that is
    to be made of a run's checkpoint."""
    conn = store_connection()
    for run_id, from_run in lineage.unbound(conn):
        granted = _granted(run_id, from_run)
        lineage.grant(conn, run_id, from_run, granted)
        if not granted:
            log.warning("origin_forbidden", run_id=run_id, origin=from_run)
    for waiting in model_rows.waiting(conn):
        if _may_read(waiting.owner_id, waiting.from_run):
            model_rows.grant(conn, waiting.id)
        else:
            model_rows.forbid(conn, waiting.id)
            log.warning("origin_forbidden", model=str(waiting.id), origin=waiting.from_run)


def require(run: Run) -> None:
    """Renew the rights of a run that is to be started. Raises PermissionDenied when its owner has lost one."""
    conn = store_connection()
    for from_run in {origin.from_run for origin in lineage.origins(conn, run.no).values()}:
        granted = _granted(run.no, from_run)
        if granted:
            lineage.grant(conn, run.no, from_run, granted)
        elif lineage.waits_for(conn, run.no, from_run):
            raise PermissionDenied("The run's owner can no longer read the run that its weights come from.")


def _granted(run_id: int, from_run: int) -> bool:
    return _may_read(Run.objects.filter(no=run_id).values_list("owner_id", flat=True).first(), from_run)


def _may_read(owner: UUID | str | None, from_run: int) -> bool:
    project = Run.objects.filter(no=from_run).values_list("project__name", flat=True).first()
    return project is not None and current_actor(owner).may(Scope.RUNS_READ, project)


class GrantingThread(threading.Thread):
    """Renews rights until stopped."""

    def __init__(self) -> None:
        super().__init__(name="origin-grants", daemon=True)
        self._stopping = threading.Event()

    def run(self) -> None:
        """Look every `LOOK_S`; a database that is away is asked again."""
        while not self._stopping.wait(LOOK_S):
            try:
                close_old_connections()
                renew()
            except DatabaseError as error:
                log.warning("origins_not_checked", error=str(error).strip())

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
