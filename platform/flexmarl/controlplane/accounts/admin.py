"""Support staff's view of people, projects and tokens: read-only, since pages and API check and record changes."""

from django.contrib import admin

from flexmarl.controlplane.accounts.models import ApiToken, Membership, Project, User
from flexmarl.controlplane.common.admin import ReadOnlyAdmin


@admin.register(User)
class PersonAdmin(ReadOnlyAdmin):
    list_display = ("username", "kind", "email", "role", "is_active", "last_login")
    list_filter = ("kind", "role", "is_active")
    search_fields = ("username", "email")
    fields = ("username", "kind", "project", "email", "role", "is_active", "last_login", "date_joined")


@admin.register(Project)
class ProjectAdmin(ReadOnlyAdmin):
    list_display = ("name", "description", "created_at")


@admin.register(Membership)
class MembershipAdmin(ReadOnlyAdmin):
    list_display = ("project", "user", "role")
    list_filter = ("role",)


@admin.register(ApiToken)
class TokenAdmin(ReadOnlyAdmin):
    list_display = ("__str__", "name", "owner", "expires_at", "revoked_at", "last_used_at")
    exclude = ("secret_hash",)
