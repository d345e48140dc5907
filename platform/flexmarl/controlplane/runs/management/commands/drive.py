"""`manage.py drive`: the driver process. Any number may run; SIGTERM gives the runs back and ends it."""

import signal
import socket
import uuid
from types import FrameType
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from psycopg.conninfo import make_conninfo

from flexmarl.controlplane.common import logs
from flexmarl.controlplane.runs.driver.announcing import AnnouncingThread
from flexmarl.controlplane.runs.driver.loop import Driver
from flexmarl.controlplane.runs.driver.pages import Pages
from flexmarl.controlplane.runs.driver.pushing import Pusher
from flexmarl.controlplane.runs.retention import Janitor
from flexmarl.store import runs, schema
from flexmarl.store.connection import connect
from flexmarl.store.errors import SchemaMismatch
from flexmarl.store.log_shipping import LogShipper

KEPT_AS_NOTES = frozenset({"note"})
"""Lines of the log that are rows of the run already."""


def database_url() -> str:
    """Return the connection string of Django's database, for the driver's own connections."""
    options = connection.settings_dict
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    values = {name: options[key] for name, key in names.items() if options[key]}
    extra = {k: str(v) for k, v in options["OPTIONS"].items() if isinstance(v, str | int) and k != "application_name"}
    return make_conninfo(**values, **extra)


def _place() -> str:
    """Return the place of this machine's one driver; empty when there may be several."""
    return f"{settings.PLACE}/driver" if settings.PLACE else ""


class Command(BaseCommand):
    """Runs until SIGTERM or Ctrl-C."""

    help = "Drive runs: take their facts, decide, commit, push. Start as many as you like."
    requires_system_checks: list[str] = []  # they load every page and route: half of its start

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the database, then drive."""
        url = database_url()
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
        announcer = AnnouncingThread(Pages().tell)
        driver = Driver(url, owner, pusher, announcer)

        def on_signal(number: int, frame: FrameType | None) -> None:
            driver.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        shipper = LogShipper(url, "driver", socket.gethostname(), skip=KEPT_AS_NOTES)
        logs.ship(shipper)
        janitor = Janitor(url, settings.PAYLOADS, settings.KEEP_SAMPLES_DAYS)
        for thread in (shipper, pusher, announcer, janitor):
            thread.start()
        try:
            driver.run()
        finally:
            janitor.stop()
            announcer.stop()
            pusher.stop()
            shipper.stop()
