"""Changes of people, projects, service accounts, tokens and tickets: permission, write, audit."""

from flexmarl.controlplane.accounts.actions.people import (
    change_own_password,
    create_first_admin,
    create_user,
    reset_password,
    update_preferences,
    update_user,
)
from flexmarl.controlplane.accounts.actions.projects import (
    add_member,
    change_member,
    create_project,
    delete_project,
    remove_member,
    update_project,
)
from flexmarl.controlplane.accounts.actions.services import create_service_account, update_service_account
from flexmarl.controlplane.accounts.actions.tickets import create_ticket, take_ticket
from flexmarl.controlplane.accounts.actions.tokens import (
    DEFAULT_TOKEN_DAYS,
    MAX_TOKEN_DAYS,
    create_token,
    rename_token,
    revoke_token,
)

__all__ = [
    "DEFAULT_TOKEN_DAYS",
    "MAX_TOKEN_DAYS",
    "add_member",
    "change_member",
    "change_own_password",
    "create_first_admin",
    "create_project",
    "create_service_account",
    "create_ticket",
    "create_token",
    "create_user",
    "delete_project",
    "remove_member",
    "rename_token",
    "reset_password",
    "revoke_token",
    "take_ticket",
    "update_preferences",
    "update_project",
    "update_service_account",
    "update_user",
]
