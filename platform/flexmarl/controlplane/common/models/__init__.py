"""Models shared by all apps."""

from flexmarl.controlplane.common.models.audit import AuditEntry
from flexmarl.controlplane.common.models.base import Entity
from flexmarl.controlplane.common.models.idempotency import StoredAnswer

__all__ = ["AuditEntry", "Entity", "StoredAnswer"]
