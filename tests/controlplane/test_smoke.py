import pytest
from django.core.management import call_command

from flexmarl.controlplane.common.store import store_connection
from flexmarl.store import schema


@pytest.mark.django_db
def test_migrations_make_the_store_and_leave_nothing_to_migrate() -> None:
    schema.check(store_connection())
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
