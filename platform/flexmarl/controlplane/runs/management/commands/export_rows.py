"""`manage.py export_rows RUN FOLDER`: what a run was trained on, as lines of JSON and safetensors."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from flexmarl.controlplane.common.store import database_url
from flexmarl.controlplane.runs import row_exports
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.connection import connect
from flexmarl.store.errors import StoreError


class Command(BaseCommand):
    """Reads only; of a run that goes on, the steps so far."""

    help = "Export the rows a run was trained on: ids, masks, log-probabilities, advantages, rewards."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the run's key and a folder."""
        parser.add_argument("run", help="the run's key")
        parser.add_argument("folder", type=Path, help="new or empty")

    def handle(self, *args: Any, **options: Any) -> None:
        """Export, and tell how much there was."""
        run = Run.objects.filter(key=options["run"]).first()
        if run is None:
            raise CommandError(f"there is no run {options['run']}: give a key, such as run-1")
        try:
            with connect(database_url(), "flexmarl.export_rows", statement_s=0) as conn:
                rows = row_exports.write(conn, run, options["folder"])
        except (StoreError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{rows} rows of {run.key} are in {options['folder']}")
