"""A person. Roles decide everything; Django's own permissions serve the admin site only."""

from functools import cached_property
from typing import Any

from django.contrib.auth.models import AbstractUser, UserManager
from django.db import models

from flexmarl.controlplane.accounts.choices import PROJECT_SCOPES_OF, SCOPES_OF, Role, Theme
from flexmarl.controlplane.common.ids import uuid7
from flexmarl.controlplane.common.scopes import Scope


class PeopleManager(UserManager["User"]):
    """Makes `createsuperuser` give the role that belongs to it."""

    def create_superuser(
        self, username: str, email: str | None = None, password: str | None = None, **extra: Any
    ) -> "User":
        """Create an admin."""
        extra.setdefault("role", Role.CLUSTER_ADMIN)
        return super().create_superuser(username, email, password, **extra)


class User(AbstractUser):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    email = models.EmailField(blank=True)
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.MEMBER)
    theme = models.CharField(max_length=8, choices=Theme.choices, default=Theme.SYSTEM)
    time_zone = models.CharField(max_length=64, default="UTC")
    version = models.PositiveIntegerField(default=1, editable=False)
    updated_at = models.DateTimeField(auto_now=True)

    objects = PeopleManager()

    @property
    def everywhere(self) -> frozenset[Scope]:
        """What this person may do in the whole installation; nothing while inactive."""
        return SCOPES_OF[self.role] if self.is_active else frozenset()

    @cached_property
    def in_projects(self) -> dict[str, frozenset[Scope]]:
        """What this person may do in single projects besides; read once per object, so once per request."""
        if not self.is_active:
            return {}
        return {name: PROJECT_SCOPES_OF[role] for name, role in self.memberships.values_list("project__name", "role")}
