"""People, roles and API tokens."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "flexmarl.controlplane.accounts"
    label = "accounts"
    verbose_name = "Accounts"
