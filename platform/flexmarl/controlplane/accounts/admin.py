"""Support staff's view of people and tokens."""

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.http import HttpRequest

from flexmarl.controlplane.accounts.models import ApiToken, User


@admin.register(User)
class PersonAdmin(UserAdmin):
    list_display = ("username", "email", "role", "is_active", "last_login")
    list_filter = ("role", "is_active")
    fieldsets = (
        (None, {"fields": ("username", "password", "email")}),
        ("What they may do", {"fields": ("role", "is_active", "is_staff", "is_superuser")}),
        ("Preferences", {"fields": ("theme", "time_zone")}),
    )


@admin.register(ApiToken)
class TokenAdmin(admin.ModelAdmin):
    list_display = ("__str__", "name", "owner", "expires_at", "revoked_at", "last_used_at")
    readonly_fields = ("owner", "name", "key", "scopes", "expires_at", "last_used_at")
    exclude = ("secret_hash",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Tokens are made through the API and the settings page, where the text is shown once."""
        return False
