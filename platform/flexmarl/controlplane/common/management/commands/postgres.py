"""`manage.py postgres` for Django's list of commands and its help; manage.py itself goes to the launcher directly."""

from argparse import REMAINDER, ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from flexmarl.launcher import database_programs


class Command(BaseCommand):
    """Hands the program and its arguments to the launcher."""

    help = "Run pg_dump, pg_restore, psql or vacuumdb on the installation's database."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the program with its arguments."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: Any, **options: Any) -> None:
        """Become the program."""
        raise SystemExit(database_programs.main(options["arguments"], settings.ROOT))
