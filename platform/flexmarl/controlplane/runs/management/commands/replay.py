"""`manage.py replay RUN`: does the log of a run lead to what is stored? Exit code 0 when it does, 1 when not."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from flexmarl.controlplane.common.store import database_url
from flexmarl.controlplane.runs.driver.replaying import replay
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.connection import connect
from flexmarl.store.errors import StoreError


class Command(BaseCommand):
    """Reads only; the run may go on meanwhile."""

    help = "Re-derive a run from its event log and compare it with its stored commands and state."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the run's key or number, and whether its tasks are listed."""
        parser.add_argument("run", help="the run's key, or its number")
        parser.add_argument("--tasks", action="store_true", help="say what the task sampler believes of each task")

    def handle(self, *args: Any, **options: Any) -> None:
        """Replay, and tell every difference."""
        run_id = self._run_id(options["run"])
        try:
            with connect(database_url(), "flexmarl.replay", idle_in_transaction_s=600.0, statement_s=0) as conn:
                found = replay(conn, run_id, options["tasks"])
        except StoreError as error:
            raise CommandError(str(error)) from error
        for task in found.tasks:
            self.stdout.write(task)
        told = f"run {run_id} ({found.status}): {found.events} events, {found.commands} commands"
        if not found.differences:
            state = f", the state after event {found.snapshot_seq}" if found.snapshot_seq else ""
            self.stdout.write(f"{told}{state}: the replay equals the stored rows exactly")
            return
        self.stdout.write(f"{told}: the replay differs from the stored rows")
        for difference in found.differences:
            self.stdout.write(f"  {difference}")
        sys.exit(1)

    def _run_id(self, given: str) -> int:
        run = Run.objects.filter(no=int(given)).first() if given.isdecimal() else Run.objects.filter(key=given).first()
        if run is None:
            raise CommandError(f"there is no run {given}: give a key, such as run-1, or a number, from 1")
        return int(run.no)
