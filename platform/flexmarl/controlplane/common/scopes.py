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
    MODELS_USE = "models:use"
    """Use the playground with agents of runs."""
    PACKAGES_WRITE = "packages:write"
    """Upload or name code that hosts build and play."""
    PROJECTS_ADMIN = "projects:admin"
    """Members, service accounts and settings of a project."""
    CLUSTER_READ = "cluster:read"
    CLUSTER_ADMIN = "cluster:admin"
    """Cordon and drain nodes and devices, keep pools, bindings and quotas."""
    TOKENS_WRITE = "tokens:write"
    """Create and revoke one's own tokens."""
    AUDIT_READ = "audit:read"
    """Read the audit log: in one's projects, or everywhere."""
    USERS_ADMIN = "users:admin"
    """People, installation roles, projects."""


OF_PROJECTS = frozenset(
    {
        Scope.RUNS_READ,
        Scope.RUNS_WRITE,
        Scope.RUNS_ACT,
        Scope.RUNS_ACT_ANY,
        Scope.TRAJECTORIES_READ,
        Scope.MODELS_USE,
        Scope.PACKAGES_WRITE,
        Scope.PROJECTS_ADMIN,
        Scope.AUDIT_READ,
    }
)
"""Scopes that a person has in some projects; the others hold for the whole installation."""

KEPT_IN_PROJECTS = frozenset({Scope.CLUSTER_READ, Scope.TOKENS_WRITE})
"""Scopes of the installation that a token keeps when it is limited to some projects."""

WORDS: dict[Scope, str] = {
    Scope.RUNS_READ: "Read runs, their metrics, events and checkpoints",
    Scope.RUNS_WRITE: "Create runs and experiments, edit one's own",
    Scope.RUNS_ACT: "Start, pause, resume, stop and kill one's own runs",
    Scope.RUNS_ACT_ANY: "Control runs of others",
    Scope.TRAJECTORIES_READ: "Read trajectories",
    Scope.MODELS_USE: "Use the playground with agents of runs",
    Scope.PACKAGES_WRITE: "Have packages built, and runs start commands",
    Scope.PROJECTS_ADMIN: "Manage members and service accounts of a project",
    Scope.CLUSTER_READ: "Read pools, nodes, devices and the queue",
    Scope.CLUSTER_ADMIN: "Cordon and drain devices, manage pools and quotas",
    Scope.TOKENS_WRITE: "Create and revoke one's own tokens",
    Scope.AUDIT_READ: "Read the audit log",
    Scope.USERS_ADMIN: "Manage users, installation roles and projects",
}
"""Each scope in words."""
