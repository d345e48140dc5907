"""What a caller may do. A person has the scopes of their roles; a token has those it was given, within the roles."""

from enum import StrEnum


class Scope(StrEnum):
    RUNS_READ = "runs:read"
    RUNS_WRITE = "runs:write"
    """Create runs and experiments, and edit one's own."""
    RUNS_ACT = "runs:act"
    """Start, pause, resume, stop and kill one's own runs."""
    RUNS_ACT_ANY = "runs:act-any"
    """The same on runs of other people."""
    TRAJECTORIES_READ = "trajectories:read"
    PROJECTS_ADMIN = "projects:admin"
    """Members, service accounts and settings of a project."""
    CLUSTER_READ = "cluster:read"
    CLUSTER_ADMIN = "cluster:admin"
    """Cordon and drain nodes and devices, keep pools, bindings and quotas."""
    TOKENS_WRITE = "tokens:write"
    """Make and revoke one's own tokens."""
    AUDIT_READ = "audit:read"
    USERS_ADMIN = "users:admin"
    """People, installation roles, projects."""


OF_PROJECTS = frozenset(
    {
        Scope.RUNS_READ,
        Scope.RUNS_WRITE,
        Scope.RUNS_ACT,
        Scope.RUNS_ACT_ANY,
        Scope.TRAJECTORIES_READ,
        Scope.PROJECTS_ADMIN,
    }
)
"""Scopes that a person has in some projects; the others hold for the whole installation."""
