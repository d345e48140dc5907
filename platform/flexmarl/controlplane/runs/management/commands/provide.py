"""`manage.py provide`: the process that asks providers for the hosts of pools.

It runs where jobs are submitted. Any number may run: one works, and another takes over when its connection ends.
"""

import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from flexmarl.controlplane.common.heartbeats import heartbeat_of
from flexmarl.controlplane.common.store import database_url, require_sessions
from flexmarl.controlplane.runs.providing.working import provide
from flexmarl.host.stopping import when_told_to_stop
from flexmarl.store import schema
from flexmarl.store.connection import connect
from flexmarl.store.errors import SchemaMismatch

STUCK_S = 180.0
"""A round asks the scheduler a few times, each with a time limit; one that lasts longer is stuck."""


class Command(BaseCommand):
    """Runs until SIGTERM or Ctrl-C."""

    help = "Ask providers such as Slurm for the hosts of pools. Runs where jobs are submitted."
    requires_system_checks: list[str] = []  # they load every page and route: half of its start

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the database, then provide."""
        require_sessions()
        url = database_url()
        heartbeat = heartbeat_of("provide")
        heartbeat.start()
        heartbeat.report(url)
        stopping = threading.Event()
        when_told_to_stop(stopping.set)
        try:
            with connect(url, "flexmarl.provide.check") as conn:
                schema.check(conn)
            provide(stopping, heartbeat.watch("loop", STUCK_S))
        except SchemaMismatch as error:
            raise CommandError(f"{error}; run: manage.py prepare") from error
        finally:
            heartbeat.stop()
