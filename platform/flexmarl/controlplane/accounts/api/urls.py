"""Routes of people, projects, tokens and the audit trail."""

from django.urls import path

from flexmarl.controlplane.accounts.api import audit, projects, tokens, views

_PROJECT = "projects/<str:name>"
_ACCOUNT = f"{_PROJECT}/service-accounts/<uuid:user_id>"

urlpatterns = [
    path("me", views.MeView.as_view(), name="api-me"),
    path("me/password", views.PasswordView.as_view(), name="api-me-password"),
    path("users", views.UsersView.as_view(), name="api-users"),
    path("users/<uuid:user_id>", views.UserView.as_view(), name="api-user"),
    path("users/<uuid:user_id>/actions/reset-password", views.UserPasswordView.as_view(), name="api-user-password"),
    path("projects", projects.ProjectsView.as_view(), name="api-projects"),
    path(_PROJECT, projects.ProjectView.as_view(), name="api-project"),
    path(f"{_PROJECT}/members", projects.MembersView.as_view(), name="api-members"),
    path(f"{_PROJECT}/members/<uuid:user_id>", projects.MemberView.as_view(), name="api-member"),
    path(f"{_PROJECT}/service-accounts", projects.ServiceAccountsView.as_view(), name="api-service-accounts"),
    path(_ACCOUNT, projects.ServiceAccountView.as_view(), name="api-service-account"),
    path(f"{_ACCOUNT}/tokens", tokens.ServiceTokensView.as_view(), name="api-service-tokens"),
    path("tokens", tokens.TokensView.as_view(), name="api-tokens"),
    path("tokens/<uuid:token_id>", tokens.TokenView.as_view(), name="api-token"),
    path("ws-tickets", tokens.TicketsView.as_view(), name="api-ws-tickets"),
    path("audit", audit.AuditView.as_view(), name="api-audit"),
    path("audit/export", audit.AuditExportView.as_view(), name="api-audit-export"),
    path("audit/<uuid:entry_id>", audit.AuditEntryView.as_view(), name="api-audit-entry"),
]
