"""The read-only admin base, and support staff's view of the audit trail."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from flexmarl.controlplane.common.models import AuditEntry

if TYPE_CHECKING:
    AnyModelAdmin = admin.ModelAdmin[Any]
else:
    AnyModelAdmin = admin.ModelAdmin  # generic in its stubs only


class ReadOnlyAdmin(AnyModelAdmin):
    """Shows rows; nobody adds, changes or deletes them here."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False


@admin.register(AuditEntry)
class AuditAdmin(ReadOnlyAdmin):
    list_display = ("at", "actor_name", "action", "target_name", "request_id")
    list_filter = ("action",)
    search_fields = ("target_name", "actor_name", "request_id")
