"""`manage.py prepare`: bring a database to this version and make the first admin. Safe to repeat."""

import json
import secrets
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand

from flexmarl.controlplane.accounts.actions import create_first_admin
from flexmarl.controlplane.accounts.queries import never_signed_in
from flexmarl.controlplane.common.store import require_sessions, store_connection
from flexmarl.controlplane.settings import env
from flexmarl.store.control import process_heartbeats

USERNAME = "admin"


class Command(BaseCommand):
    """Migrates, then creates the first admin when there is none."""

    help = "Migrate the database and create the first admin. Prints one JSON object."
    requires_system_checks: list[str] = []  # they load every page and route: half of its start

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the new admin with its password, the one whom nobody has signed in as yet, or an empty object."""
        require_sessions()
        call_command("migrate", interactive=False, stdout=self.stderr)
        process_heartbeats.clear(store_connection(), settings.PLACE)
        given = env.text("FLEXMARL_ADMIN_PASSWORD")
        password = given or secrets.token_urlsafe(12)
        admin = create_first_admin(USERNAME, password)
        made = {} if admin is None else {"username": USERNAME, "password": "as given" if given else password}
        if admin is None and never_signed_in(USERNAME):
            made = {"username": USERNAME}
        self.stdout.write(json.dumps(made))
