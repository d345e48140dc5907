"""What others read of people: the actor of a request, people and tokens as plain values."""

from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet

from flexmarl.controlplane.accounts.models import ApiToken, Project, User
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.middleware import request_id_of
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339


def actor_of(request: Any) -> Actor:
    """Build the actor of a page's or an API request: the user's scopes, narrowed by the token."""
    user, token = request.user, getattr(request, "auth", None)
    if isinstance(user, AnonymousUser):
        return Actor(None, "anonymous", frozenset(), request_id_of(request))
    granted = token.granted if isinstance(token, ApiToken) else frozenset(Scope)
    return _actor(user, granted, request_id_of(request))


def actor_of_user(user: User) -> Actor:
    """Build the actor of a person outside a request."""
    return _actor(user, frozenset(Scope), "")


def _actor(user: User, granted: frozenset[Scope], request_id: str) -> Actor:
    projects = {name: held & granted for name, held in user.in_projects.items()}
    return Actor(user.id, user.username, user.everywhere & granted, request_id, projects)


def user_row(user: User) -> dict[str, Any]:
    """Return a person as others see them."""
    return {
        "id": str(user.id),
        "username": user.username,
        "email": user.email,
        "role": user.role,
        "is_active": user.is_active,
        "created_at": rfc3339(user.date_joined),
        "version": user.version,
        "url": f"/api/v1/users/{user.id}",
    }


def me(user: User, actor: Actor) -> dict[str, Any]:
    """Return a person as they see themselves: with preferences and what they may do now."""
    return {
        **user_row(user),
        "theme": user.theme,
        "time_zone": user.time_zone,
        "scopes": sorted(str(scope) for scope in actor.scopes),
        "projects": [
            {"name": name, "scopes": sorted(str(scope) for scope in held)}
            for name, held in sorted(actor.projects.items())
        ],
    }


def project_names(actor: Actor) -> list[str]:
    """Names of the projects whose runs a caller may see, in order."""
    reach = actor.reach(Scope.RUNS_READ)
    return sorted(Project.objects.values_list("name", flat=True) if reach is None else reach)


def users() -> QuerySet[User]:
    """All people, newest first."""
    return User.objects.order_by("-id")


def tokens_of(user_id: object) -> QuerySet[ApiToken]:
    """The tokens of a person, newest first."""
    return ApiToken.objects.filter(owner_id=user_id)


def token_row(token: ApiToken) -> dict[str, Any]:
    """Return a token without its secret."""
    return {
        "id": str(token.id),
        "name": token.name,
        "key": f"fmx_{token.key}",
        "scopes": token.scopes,
        "created_at": rfc3339(token.created_at),
        "updated_at": rfc3339(token.updated_at),
        "expires_at": rfc3339(token.expires_at),
        "revoked_at": rfc3339(token.revoked_at),
        "last_used_at": rfc3339(token.last_used_at),
        "version": token.version,
        "url": f"/api/v1/tokens/{token.id}",
        "web_url": "/settings/tokens",
    }


def current_actor(user_id: object) -> Actor:
    """Build the actor of a person as they are now; one who may do nothing for unknown or inactive people."""
    user = User.objects.filter(pk=user_id).first() if user_id else None
    return actor_of_user(user) if user else Actor(None, "nobody", frozenset())
