"""`manage.py create_token`: an API token for a script, made by whoever may run commands on this machine."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from flexmarl.controlplane.accounts.actions import DEFAULT_TOKEN_DAYS, create_token
from flexmarl.controlplane.accounts.models import User
from flexmarl.controlplane.accounts.queries import actor_of_user
from flexmarl.controlplane.common.problems import ProblemError


class Command(BaseCommand):
    """Makes a token, with all scopes of its owner unless told otherwise, and prints its text alone."""

    help = "Create an API token of a user and print it. It cannot be shown again."
    requires_system_checks: list[str] = []  # they load every page and route: half of its start

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--user", default="admin")
        parser.add_argument("--name", required=True, help="name of the token, such as its purpose")
        parser.add_argument("--days", type=int, default=DEFAULT_TOKEN_DAYS)
        parser.add_argument("--scopes", nargs="+", metavar="SCOPE", help="e.g. runs:read; default: all of the owner's")
        parser.add_argument("--projects", nargs="+", metavar="PROJECT", default=(), help="default: all of the owner's")
        parser.add_argument("--networks", nargs="+", metavar="RANGE", default=(), help="e.g. 10.0.0.0/8; default: any")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the token."""
        user = User.objects.filter(username=options["user"], is_active=True).first()
        if user is None:
            raise CommandError(f"there is no active user named {options['user']}")
        try:
            _, text = create_token(
                actor_of_user(user),
                options["name"],
                options["scopes"],
                expires_in_days=options["days"],
                projects=options["projects"],
                networks=options["networks"],
            )
        except ProblemError as problem:
            raise CommandError(str(problem)) from None
        self.stdout.write(text)
