"""Bringing an embedded service back that ended: again and again, with a pause that grows, for as long as it takes.

Invariant: whatever keeps it from starting - a full disk, a port, no memory - is logged and tried again; nothing of it
reaches the supervisor's loop.
"""

import subprocess

import psutil
import psycopg
import structlog

from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.postgres import EmbeddedPostgres
from flexmarl.launcher.valkey import EmbeddedValkey

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0
"""So much later than the space, at most, a database is back that a full disk had ended."""
KEPT_FROM_STARTING = (LaunchError, OSError, psycopg.Error, psutil.Error, subprocess.SubprocessError)


class Revival:
    """One service, and when it is tried next."""

    def __init__(self, service: EmbeddedPostgres | EmbeddedValkey, log: structlog.typing.FilteringBoundLogger) -> None:
        self.service = service
        self._log = log
        self._wait_s = 0.0
        self._due = 0.0
        self._down = False

    def round(self, now: float) -> bool:
        """Start the service when it ended and its turn has come; return whether it came back."""
        if self.service.alive():
            return False
        if not self._down:
            self._log.warning("ended", process=self.service.name)
            self._down, self._due = True, now
        if now < self._due:
            return False
        try:
            self.service.start()
        except KEPT_FROM_STARTING as error:
            self._wait_s = min(max(2 * self._wait_s, FIRST_WAIT_S), LONGEST_WAIT_S)
            self._due = now + self._wait_s
            self._log.error("not started", process=self.service.name, reason=str(error), again_in_s=self._wait_s)
            if not self.service.alive():
                return False
        self._wait_s, self._down = 0.0, False
        self._log.info("started", process=self.service.name, port=self.service.port)
        return True
