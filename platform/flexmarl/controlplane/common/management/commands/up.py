"""`manage.py up` for Django's list of commands and `call_command`; manage.py itself goes to the launcher directly."""

from argparse import ArgumentParser, Namespace
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from flexmarl.launcher import cli


class Command(BaseCommand):
    """Hands the options to the launcher."""

    help = cli.HELP
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        cli.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until Ctrl-C or SIGTERM."""
        raise SystemExit(cli.up(Namespace(**options), settings.ROOT))
