"""Every app with models is really migrated: an app without a migrations package would pass unnoticed otherwise."""

from io import StringIO

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db.migrations.loader import MigrationLoader

pytestmark = pytest.mark.django_db


def test_every_app_with_models_has_migrations() -> None:
    ours = {
        config.label
        for config in apps.get_app_configs()
        if config.name.startswith("flexmarl.") and any(model._meta.managed for model in config.get_models())
    }
    migrated = MigrationLoader(None, ignore_no_migrations=True).migrated_apps
    assert ours
    assert ours <= migrated, ours - migrated


def test_models_and_migrations_agree() -> None:
    output = StringIO()
    try:
        call_command("makemigrations", check=True, dry_run=True, stdout=output)
    except SystemExit:
        pytest.fail(output.getvalue())
