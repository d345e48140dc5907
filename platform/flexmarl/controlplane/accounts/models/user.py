"""A person or a service account. Roles decide everything; Django's own permissions serve the admin site only."""

from functools import cached_property
from typing import Any, ClassVar

from django.contrib.auth.models import AbstractUser, UserManager
from django.db import models

from flexmarl.controlplane.accounts.choices import (
    PROJECT_SCOPES_OF,
    SCOPES_OF,
    SERVICE_SCOPES,
    Density,
    Role,
    Theme,
    UserKind,
)
from flexmarl.controlplane.accounts.models.project import Project
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
    kind = models.CharField(max_length=8, choices=UserKind.choices, default=UserKind.PERSON)
    project = models.ForeignKey(
        Project, null=True, blank=True, on_delete=models.PROTECT, to_field="name", related_name="service_accounts"
    )
    """The one project of a service account; null for people, whose memberships say where they are."""
    email = models.EmailField(blank=True)
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.MEMBER)
    theme = models.CharField(max_length=8, choices=Theme.choices, default=Theme.SYSTEM)
    density = models.CharField(max_length=12, choices=Density.choices, default=Density.COMFORTABLE)
    letter_keys = models.BooleanField(default=True)
    """Whether single letters act as keys on pages."""
    time_zone = models.CharField(max_length=64, default="UTC")
    version = models.PositiveIntegerField(default=1, editable=False)
    updated_at = models.DateTimeField(auto_now=True)

    objects: ClassVar[PeopleManager] = PeopleManager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(kind=UserKind.PERSON, project=None)
                | models.Q(kind=UserKind.SERVICE, project__isnull=False),
                name="service_account_in_a_project",
            )
        ]

    @property
    def is_service(self) -> bool:
        """Say whether this is a service account."""
        return self.kind == UserKind.SERVICE

    @property
    def everywhere(self) -> frozenset[Scope]:
        """What this person may do in the whole installation; nothing while inactive."""
        if not self.is_active:
            return frozenset()
        return SERVICE_SCOPES if self.is_service else SCOPES_OF[self.role]

    @cached_property
    def roles(self) -> dict[str, str]:
        """Project name -> role; read once per object, so once per request."""
        return dict(self.memberships.values_list("project__name", "role"))

    @property
    def in_projects(self) -> dict[str, frozenset[Scope]]:
        """What this person may do in single projects besides; nothing while inactive."""
        if not self.is_active:
            return {}
        return {name: PROJECT_SCOPES_OF[role] for name, role in self.roles.items()}
