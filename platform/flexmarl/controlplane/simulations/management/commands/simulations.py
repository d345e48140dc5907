"""`manage.py simulations`: the process that does the long work that people start: simulations, checks, sweeps.

It also plans running runs anew, by the rates that they measure.

Any number may run; SIGTERM ends it. Checks, sweeps and plans have a thread of their own each, so that none waits for a
simulation. Where jobs of a cluster can be submitted, another one provides hosts, as `manage.py provide` does.
"""

import os
import signal
from types import FrameType
from typing import Any

import structlog
from django.core.management.base import BaseCommand
from django.db import OperationalError, connection

from flexmarl.controlplane.common.collecting import collected_seldom
from flexmarl.controlplane.common.heartbeats import heartbeat_of
from flexmarl.controlplane.common.store import database_url, require_sessions
from flexmarl.controlplane.runs.providing.working import ProvidingThread, can_submit
from flexmarl.controlplane.simulations.executing import IDLE_S, StopSignal, run
from flexmarl.controlplane.simulations.replan_thread import ReplanningThread
from flexmarl.controlplane.sweeps.advancing import SweepingThread
from flexmarl.controlplane.telemetry.checks.checking import CheckingThread

log = structlog.get_logger(__name__)
NICENESS = 10
"""Training goes first where both want a core."""


STUCK_S = 600.0
"""Reading what a long run recorded takes minutes at worst; what is computed shows every two seconds that it moves."""


class Command(BaseCommand):
    """Runs until SIGTERM or Ctrl-C; what it was at is begun again by the next one."""

    help = "Run simulations and consistency checks requested on a page or over REST. Several may run at once."
    requires_system_checks: list[str] = []  # they load every page and route: half of its start

    def handle(self, *args: Any, **options: Any) -> None:
        """Play what waits; a database that goes away is waited for."""
        require_sessions()
        os.nice(NICENESS)
        heartbeat = heartbeat_of("simulations")
        heartbeat.start()
        heartbeat.report(database_url())
        asked = StopSignal(heartbeat.watch("loop", STUCK_S))

        def on_signal(number: int, frame: FrameType | None) -> None:
            asked.stop = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        checks = CheckingThread(database_url())
        sweeps, replans = SweepingThread(), ReplanningThread()
        hosts = ProvidingThread(heartbeat.watch("providing", STUCK_S))
        for thread in (checks, sweeps, replans, *([hosts] if can_submit() else [])):
            thread.start()
        with collected_seldom():
            while not asked.stop:
                try:
                    run(asked)
                except OperationalError as error:
                    asked.turned()
                    log.warning("database_lost", error=str(error))
                    connection.close()
                    signal.sigtimedwait([], IDLE_S)
        heartbeat.stop()
        hosts.stop()
        sweeps.stop()
        replans.stop()
        checks.stop()
