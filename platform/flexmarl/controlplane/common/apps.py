"""What every app shares: identities, audit, problems, idempotency, the store's connection, live hints."""

from django.apps import AppConfig


class CommonConfig(AppConfig):
    name = "flexmarl.controlplane.common"
    label = "common"
    verbose_name = "Common"
