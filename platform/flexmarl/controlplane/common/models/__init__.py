"""Models shared by all apps."""

from flexmarl.controlplane.common.models.audit import AuditEntry
from flexmarl.controlplane.common.models.base import Entity
from flexmarl.controlplane.common.models.idempotency import StoredAnswer
from flexmarl.controlplane.common.models.leased import OPEN, LeasedWork, WorkState

__all__ = ["OPEN", "AuditEntry", "Entity", "LeasedWork", "StoredAnswer", "WorkState"]
