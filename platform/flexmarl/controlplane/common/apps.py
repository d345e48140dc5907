"""What every app shares: identities, audit, problems, idempotency, the store's connection, live hints."""

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate

from flexmarl.controlplane.common.store import store_connection
from flexmarl.store import schema


class CommonConfig(AppConfig):
    name = "flexmarl.controlplane.common"
    label = "common"
    verbose_name = "Common"

    def ready(self) -> None:
        """Let `migrate` also bring the experience store up to date."""
        post_migrate.connect(_upgrade_store, sender=self)


def _upgrade_store(**_: Any) -> None:
    schema.apply(store_connection())
