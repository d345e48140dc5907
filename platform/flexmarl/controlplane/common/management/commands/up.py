"""`manage.py up`: everything on this machine from one command."""

import socket
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from flexmarl.controlplane.settings import env
from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.plan import Options
from flexmarl.launcher.up import DEFAULT_PORT, Up


class Command(BaseCommand):
    """Reads the options; the launcher does the rest."""

    help = "Start services, migrations, first admin and all processes of one machine; print one address."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--host", default="127.0.0.1", help="address the pages listen on")
        parser.add_argument(
            "--port",
            type=int,
            default=-1,
            help=f"port of the pages; default {DEFAULT_PORT}, or a free one; 0 picks one",
        )
        parser.add_argument("--home", type=Path, help="data folder; default FLEXMARL_HOME or .flexmarl in the checkout")
        parser.add_argument("--demo", action="store_true", help="also start the demo run")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until Ctrl-C or SIGTERM."""
        home = (options["home"] or settings.HOME).expanduser().resolve()
        node = env.text("FLEXMARL_NODE") or socket.gethostname()
        choice = Options(settings.ROOT, home, options["host"], options["port"], node, options["demo"])
        try:
            Up(choice, self._say).run()
        except LaunchError as error:
            self.stderr.write(str(error))
            raise SystemExit(error.exit_code) from None

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
