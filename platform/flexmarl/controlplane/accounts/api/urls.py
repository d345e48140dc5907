"""Routes of people and tokens."""

from django.urls import path

from flexmarl.controlplane.accounts.api import views

urlpatterns = [
    path("me", views.MeView.as_view(), name="api-me"),
    path("users", views.UsersView.as_view(), name="api-users"),
    path("users/<uuid:user_id>", views.UserView.as_view(), name="api-user"),
    path("tokens", views.TokensView.as_view(), name="api-tokens"),
    path("tokens/<uuid:token_id>", views.TokenView.as_view(), name="api-token"),
]
