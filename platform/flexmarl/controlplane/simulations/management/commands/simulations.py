"""`manage.py simulations`: the process that plays what people asked for. Any number may run; SIGTERM ends it."""

import os
import signal
from types import FrameType
from typing import Any

import structlog
from django.core.management.base import BaseCommand
from django.db import OperationalError, connection

from flexmarl.controlplane.common.collecting import collected_seldom
from flexmarl.controlplane.simulations.executing import IDLE_S, Asked, run

log = structlog.get_logger(__name__)
NICENESS = 10
"""Training goes first where both want a core."""


class Command(BaseCommand):
    """Runs until SIGTERM or Ctrl-C; what it was at is begun again by the next one."""

    help = "Play simulations that were asked for by page or REST. Start as many as you like."
    requires_system_checks: list[str] = []  # they load every page and route: half of its start

    def handle(self, *args: Any, **options: Any) -> None:
        """Play what waits; a database that goes away is waited for."""
        os.nice(NICENESS)
        asked = Asked()

        def on_signal(number: int, frame: FrameType | None) -> None:
            asked.stop = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        with collected_seldom():
            while not asked.stop:
                try:
                    run(asked)
                except OperationalError as error:
                    log.warning("database_lost", error=str(error))
                    connection.close()
                    signal.sigtimedwait([], IDLE_S)
