"""`manage.py drive`: the driver process. Any number may run; SIGTERM gives the runs back and ends it."""

import socket
import uuid
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from flexmarl.controlplane.common import logs
from flexmarl.controlplane.common.collecting import collected_seldom
from flexmarl.controlplane.common.heartbeats import heartbeat_of
from flexmarl.controlplane.common.store import database_url, require_sessions
from flexmarl.controlplane.runs.driver.announcing import AnnouncingThread
from flexmarl.controlplane.runs.driver.loop import Driver
from flexmarl.controlplane.runs.driver.pages import Pages
from flexmarl.controlplane.runs.driver.pushing import Pusher
from flexmarl.controlplane.runs.origin_grants import GrantingThread
from flexmarl.controlplane.runs.retention import Janitor
from flexmarl.host.stopping import when_told_to_stop
from flexmarl.store import schema
from flexmarl.store.connection import connect
from flexmarl.store.control import runs
from flexmarl.store.errors import SchemaMismatch
from flexmarl.store.telemetry.log_shipping import LogShipper

STUCK_S = 180.0
"""A driver whose loop has not moved for so long is stuck: reading back a run takes seconds, a turn half of one."""
KEPT_AS_NOTES = frozenset({"note"})
"""Lines of the log that are rows of the run already."""


def _place() -> str:
    """Return the place of this machine's one driver; empty when there may be several."""
    return f"{settings.PLACE}/driver" if settings.PLACE else ""


class Command(BaseCommand):
    """Runs until SIGTERM or Ctrl-C."""

    help = "Drive runs: read their events, decide, commit, dispatch commands. Several may run at once."
    requires_system_checks: list[str] = []  # they load every page and route: half of its start

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the database, then drive."""
        require_sessions()
        url = database_url()
        heartbeat = heartbeat_of("driver")
        heartbeat.start()
        heartbeat.report(url)
        try:
            with connect(url, "flexmarl.driver.check") as conn:
                schema.check(conn)
                if _place():
                    runs.release_place(conn, _place())
        except SchemaMismatch as error:
            raise CommandError(f"{error}; run: manage.py prepare") from error
        owner = f"{_place() or socket.gethostname()}:{uuid.uuid4()}"
        structlog.contextvars.bind_contextvars(driver=owner)
        pusher = Pusher(settings.BROKER_URL, settings.CLUSTER_KEY)
        announcer = AnnouncingThread(Pages().announce)
        driver = Driver(url, owner, pusher, announcer, heartbeat.watch("loop", STUCK_S))
        when_told_to_stop(driver.stop)
        shipper = LogShipper(url, "driver", socket.gethostname(), skip=KEPT_AS_NOTES)
        logs.ship(shipper)
        janitor = Janitor(url, settings.HOME)
        grants = GrantingThread()
        for thread in (shipper, pusher, announcer, janitor, grants):
            thread.start()
        try:
            with collected_seldom():
                driver.run()
        finally:
            grants.stop()
            janitor.stop()
            announcer.stop()
            pusher.stop()
            shipper.stop()
            heartbeat.stop()
