"""Roles of people, in the installation and in projects, and what each may do."""

from django.db import models

from flexmarl.controlplane.common.scopes import OF_PROJECTS, Scope


class Role(models.TextChoices):
    """What a person is to the whole installation. What they may do with runs, their projects say."""

    MEMBER = "member", "Member"
    AUDITOR = "auditor", "Auditor"
    CLUSTER_ADMIN = "cluster_admin", "Cluster admin"


class ProjectRole(models.TextChoices):
    """What a person is in one project."""

    VIEWER = "viewer", "Viewer"
    EDITOR = "editor", "Editor"
    OPERATOR = "operator", "Operator"
    ADMIN = "project_admin", "Project admin"


class UserKind(models.TextChoices):
    """A service account belongs to a project, acts through tokens alone and cannot sign in."""

    PERSON = "person", "Person"
    SERVICE = "service", "Service account"


class Theme(models.TextChoices):
    SYSTEM = "system", "As the system"
    LIGHT = "light", "Light"
    DARK = "dark", "Dark"


class Density(models.TextChoices):
    COMFORTABLE = "comfortable", "Comfortable"
    DENSE = "dense", "Dense"


SCOPES_OF: dict[str, frozenset[Scope]] = {
    str(Role.MEMBER): frozenset({Scope.CLUSTER_READ, Scope.TOKENS_WRITE}),
    str(Role.AUDITOR): frozenset({Scope.AUDIT_READ, Scope.TOKENS_WRITE}),
    str(Role.CLUSTER_ADMIN): frozenset(Scope),
}
"""Installation role -> scopes held everywhere."""

SERVICE_SCOPES = frozenset({Scope.CLUSTER_READ})
"""What a service account holds everywhere: it reads the cluster; its tokens are made by people."""

SERVICE_ROLES = tuple(str(role) for role in (ProjectRole.VIEWER, ProjectRole.EDITOR, ProjectRole.OPERATOR))
"""What a service account may be in its project: keeping members is for people."""

_VIEWER = frozenset({Scope.RUNS_READ, Scope.TRAJECTORIES_READ})
_EDITOR = _VIEWER | {Scope.RUNS_WRITE, Scope.RUNS_ACT, Scope.MODELS_USE}
_OPERATOR = _EDITOR | {Scope.RUNS_ACT_ANY, Scope.PACKAGES_WRITE}

PROJECT_SCOPES_OF: dict[str, frozenset[Scope]] = {
    str(ProjectRole.VIEWER): _VIEWER,
    str(ProjectRole.EDITOR): _EDITOR,
    str(ProjectRole.OPERATOR): _OPERATOR,
    str(ProjectRole.ADMIN): OF_PROJECTS,
}
"""Project role -> scopes held in that project."""
