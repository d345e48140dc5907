"""`manage.py start_demo`: the run that `up --demo` shows."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from flexmarl.contracts.resolve import load_templates
from flexmarl.contracts.status import TERMINAL
from flexmarl.controlplane.accounts.models import User
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.experiments.plans import Draft
from flexmarl.controlplane.runs.actions import create_run
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.runs.queries import run_detail

TEMPLATE = "reference_game"


class Command(BaseCommand):
    """Starts the demo as the first admin, or finds the one that is going on."""

    help = "Start the demo run unless one is active. Prints one JSON object."
    requires_system_checks: list[str] = []  # they load every page and route: half of its start

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--template", default=TEMPLATE, choices=sorted(load_templates()))

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the run's key and page."""
        admin = User.objects.filter(is_superuser=True, is_active=True).order_by("date_joined").first()
        if admin is None:
            raise CommandError("there is no active admin to own the demo; run: manage.py prepare")
        template = options["template"]
        title = load_templates()[template].title
        name = f"Demo: {title[0].lower()}{title[1:]}"
        active = Run.objects.filter(name=name).exclude(state__status__in=[str(status) for status in TERMINAL])
        run = active.order_by("-created_at").first()
        try:
            run = run or create_run(actor_of_user(admin), Draft(name=name, template=template), start=True)
        except ProblemError as problem:
            raise CommandError(str(problem)) from None
        self.stdout.write(json.dumps({"key": run.key, "path": run_detail(run)["web_url"]}))
