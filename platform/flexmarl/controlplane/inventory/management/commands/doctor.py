"""`manage.py doctor`: what is wrong on this machine and what to do about it."""

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand

from flexmarl.controlplane.inventory.doctor import DoctorFinding, FindingLevel, examine

MARKS = {FindingLevel.OK: "ok     ", FindingLevel.WARNING: "warning", FindingLevel.ERROR: "ERROR  "}


class Command(BaseCommand):
    """Prints one line per finding; the exit code is 1 when there is an error."""

    help = "Check database, broker, disk, devices, versions and clock, and print the next step for each problem."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--json", action="store_true", help="print a JSON object instead of lines")

    def handle(self, *args: Any, **options: Any) -> None:
        """Report, and fail when something is broken."""
        findings = examine()
        broken = any(finding.level is FindingLevel.ERROR for finding in findings)
        if options["json"]:
            self.stdout.write(
                json.dumps({"ok": not broken, "checks": [asdict(finding) for finding in findings]}, indent=1)
            )
        else:
            self.stdout.write("\n".join(_line(finding) for finding in findings))
        if broken:
            raise SystemExit(1)


def _line(finding: DoctorFinding) -> str:
    advice = f"\n                     -> {finding.advice}" if finding.advice else ""
    return f"{MARKS[finding.level]}  {finding.check:<10}  {finding.text}{advice}"
