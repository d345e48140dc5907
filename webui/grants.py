"""Who can give what is missing: turns a refused scope into the roles that hold it and the people who give roles."""

from typing import Any

from django.http import HttpRequest

from flexmarl.controlplane.accounts import queries as accounts
from flexmarl.controlplane.common.scopes import OF_PROJECTS, WORDS, Scope

MOST_NAMES = 5


def missing(request: HttpRequest, scopes: list[str]) -> dict[str, Any]:
    """Say which roles hold a scope that the caller lacks, and who can give them one."""
    known = {str(scope): scope for scope in Scope}
    scope = next((known[text] for text in scopes if text in known), None)
    if scope is None or not request.user.is_authenticated:
        return {}
    actor = accounts.actor_of(request)
    admins = accounts.project_admins(actor.projects) if scope in OF_PROJECTS else {}
    return {
        "scope": str(scope),
        "words": WORDS[scope],
        "roles": accounts.roles_with(scope),
        "project_admins": [(name, named(people)) for name, people in sorted(admins.items())],
        "cluster_admins": named(accounts.cluster_admins()),
    }


def named(people: list[str]) -> str:
    """Write some names and how many more there are."""
    more = len(people) - MOST_NAMES
    return ", ".join(people[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
