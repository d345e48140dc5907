"""Roles of people and what each may do."""

from django.db import models

from flexmarl.controlplane.common.scopes import Scope


class Role(models.TextChoices):
    VIEWER = "viewer", "Viewer"
    EDITOR = "editor", "Editor"
    OPERATOR = "operator", "Operator"
    ADMIN = "admin", "Admin"


class Theme(models.TextChoices):
    SYSTEM = "system", "As the system"
    LIGHT = "light", "Light"
    DARK = "dark", "Dark"


_VIEWER = frozenset({Scope.RUNS_READ, Scope.TRAJECTORIES_READ, Scope.CLUSTER_READ, Scope.TOKENS_WRITE})
_EDITOR = _VIEWER | {Scope.RUNS_WRITE, Scope.RUNS_ACT}
_OPERATOR = _EDITOR | {Scope.RUNS_ACT_ANY, Scope.CLUSTER_ADMIN}

SCOPES_OF: dict[str, frozenset[Scope]] = {
    str(Role.VIEWER): _VIEWER,
    str(Role.EDITOR): _EDITOR,
    str(Role.OPERATOR): _OPERATOR,
    str(Role.ADMIN): frozenset(Scope),
}
