"""What every app shares: identities, audit, problems, idempotency, the store's connection, live hints."""

from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate, pre_migrate

from flexmarl.controlplane.common.store import store_connection
from flexmarl.store import schema


class CommonConfig(AppConfig):
    name = "flexmarl.controlplane.common"
    label = "common"
    verbose_name = "Common"

    def ready(self) -> None:
        """Let `migrate` also bring the experience store up to date."""
        pre_migrate.connect(_unbound, sender=self)
        post_migrate.connect(_upgrade_store, sender=self)


def _unbound(using: str, **_: Any) -> None:
    """An upgrade of a large table takes as long as it takes."""
    with connections[using].cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")


def _upgrade_store(**_: Any) -> None:
    schema.apply(store_connection())
