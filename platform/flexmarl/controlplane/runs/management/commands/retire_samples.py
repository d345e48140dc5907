"""`manage.py retire_samples`: make room by letting ended runs' samples go; their curves, episodes and log stay."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from flexmarl.controlplane.common.store import database_url
from flexmarl.controlplane.runs.limits import DAY_S
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.runs.retention import retire
from flexmarl.store.connection import connect
from flexmarl.store.data import retention
from flexmarl.store.data.segments import SegmentFolder


class Command(BaseCommand):
    """Retires by age, or the runs that are named."""

    help = "Delete samples and payloads of ended runs, by age or by name. Metrics, episodes and logs are kept."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("runs", nargs="*", metavar="RUN", help="keys of runs, whatever their age")
        parser.add_argument("--days", type=int, default=None, help="runs that ended at least this many days ago")
        parser.add_argument("--dry-run", action="store_true", help="only list the runs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Retire and print one line per run."""
        if bool(options["runs"]) == (options["days"] is not None):
            raise CommandError("use either runs or --days")
        if options["days"] is not None and options["days"] < 0:
            raise CommandError(f"--days is {options['days']}; it must be a whole number from 0")
        with connect(database_url(), "flexmarl.retire_samples", statement_s=0) as conn:
            days = options["days"]
            numbers = _numbers(options["runs"]) if days is None else retention.due(conn, days * DAY_S)
            keys = dict(Run.objects.filter(no__in=numbers).values_list("no", "key"))
            if options["dry_run"]:
                for number in numbers:
                    self.stdout.write(f"{keys.get(number, number)}: samples would be deleted")
                return
            for one in retire(conn, numbers):
                said = f"kept: {one.kept}" if one.kept else f"{one.samples} samples deleted"
                self.stdout.write(f"{keys.get(one.run_no, one.run_no)}: {said}")
            if settings.PAYLOADS.is_dir():
                self.stdout.write(f"{retention.collect(conn, SegmentFolder(settings.PAYLOADS))} files removed")


def _numbers(keys: list[str]) -> list[int]:
    found = dict(Run.objects.filter(key__in=keys).values_list("key", "no"))
    if unknown := [key for key in keys if key not in found]:
        raise CommandError(f"there is no run {unknown[0]}")
    return [found[key] for key in keys]
