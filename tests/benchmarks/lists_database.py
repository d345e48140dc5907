"""The database of the benchmark of lists: people with their clients, and rows that PostgreSQL makes. Needs Django."""

import json
from typing import Any

from django.core.management import call_command
from django.db import connection
from django.test import Client
from rest_framework.test import APIClient

from flexmarl.contracts.resolve import resolve
from flexmarl.controlplane.accounts.models import User
from tests.support.controlplane import make_person


def people() -> tuple[Client, APIClient]:
    """Make the tables and a person, and return their browser and their script."""
    call_command("migrate", verbosity=0)
    person = make_person("bench", "editor")
    page, api = Client(), APIClient()
    page.force_login(person)
    api.force_login(person)
    return page, api


def fill(runs: int, statements: tuple[str, ...], values: dict[str, Any]) -> None:
    """Fill runs, their states and their series."""
    owner = User.objects.get(username="bench")
    spec = json.dumps(resolve({}, template="reference_game").document)
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement, {**values, "runs": runs, "owner": owner.pk, "spec": spec})
        cursor.execute("ANALYZE")
