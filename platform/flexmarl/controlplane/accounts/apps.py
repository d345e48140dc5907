"""People, roles and API tokens."""

from importlib import import_module

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "flexmarl.controlplane.accounts"
    label = "accounts"
    verbose_name = "Accounts"

    def ready(self) -> None:
        """Register the API's ways to sign in with its document, and who is told of changes of rights."""
        import_module("flexmarl.controlplane.accounts.api.openapi")
        import_module("flexmarl.controlplane.accounts.rights").connect()
