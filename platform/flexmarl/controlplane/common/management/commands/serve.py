"""`manage.py serve`: the web process alone."""

from argparse import ArgumentParser
from typing import Any

import uvicorn
from django.core.management.base import BaseCommand

from flexmarl.launcher.up import DEFAULT_PORT

GRACE_S = 1
"""Open pages hold a web socket: waiting for them at the end would never end."""


class Command(BaseCommand):
    """Starts uvicorn with the control plane's application."""

    help = "Serve pages, REST and web sockets."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=DEFAULT_PORT)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until SIGTERM."""
        uvicorn.run(
            "flexmarl.controlplane.asgi:application",
            host=options["host"],
            port=options["port"],
            lifespan="off",
            timeout_graceful_shutdown=GRACE_S,
            log_config=None,  # the control plane's own logging is set up already
            access_log=False,
            server_header=False,
        )
