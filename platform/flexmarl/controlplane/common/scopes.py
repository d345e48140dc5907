"""What a caller may do. A person has the scopes of their role; a token has those it was given, within the role."""

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
    CLUSTER_READ = "cluster:read"
    CLUSTER_ADMIN = "cluster:admin"
    """Cordon nodes and devices, keep pools."""
    TOKENS_WRITE = "tokens:write"
    """Make and revoke one's own tokens."""
    USERS_ADMIN = "users:admin"
