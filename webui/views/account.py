"""Signing in and out, tokens, profile."""

from typing import Any
from zoneinfo import available_timezones

from django.contrib.auth import views as auth
from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts import queries as accounts
from flexmarl.controlplane.accounts.backend import remember_device, wait_of
from flexmarl.controlplane.common.scopes import Scope
from webui.views.base import frame, page, projects_of, show
from webui.views.people import scope_rows

MOST_TOKENS = 500


class SignIn(auth.LoginView):
    """The only page that people who are not signed in can see."""

    template_name = "webui/sign_in.html"
    redirect_authenticated_user = True

    def form_valid(self, form: Any) -> HttpResponse:
        """Sign in, and know the browser again."""
        response = super().form_valid(form)
        remember_device(response, form.get_user().get_username())
        return response

    def form_invalid(self, form: Any) -> HttpResponse:
        """Say what is wrong, or with 429 when to come back."""
        wait_s = wait_of(self.request)
        context = self.get_context_data(form=form, wait_s=wait_s)
        headers = {"Retry-After": str(wait_s)} if wait_s else None
        return self.render_to_response(context, status=429 if wait_s else 200, headers=headers)

    def get_context_data(self, **kwargs: object) -> dict[str, object]:
        """Add what the frame shows."""
        return {**frame(self.request), **super().get_context_data(**kwargs)}


class SignOut(auth.LogoutView):
    """Ends the session; POST only."""

    next_page = "webui:sign_in"


@page(Scope.TOKENS_WRITE)
def tokens(request: HttpRequest) -> HttpResponse:
    """List a person's tokens; the page creates and revokes them through the API."""
    actor = accounts.actor_of(request)
    everybodys = request.GET.get("whose") == "all"
    found = accounts.tokens_kept_by(actor) if everybodys else accounts.tokens_of(accounts.account_of(request))
    rows = [accounts.token_row(token) for token in found.order_by("-created_at")[:MOST_TOKENS]]
    state = request.GET.get("state", "")
    context = {
        "nav": "tokens",
        "tokens": [row for row in rows if not state or row["state"] == state],
        "counts": _counted(rows),
        "state": state,
        "whose": "all" if everybodys else "mine",
        "may_see_all": actor.may(Scope.USERS_ADMIN) or actor.may(Scope.PROJECTS_ADMIN),
        "scopes": scope_rows(actor.scopes),
        "limits": projects_of(request),
        "origin": f"{request.scheme}://{request.get_host()}",
    }
    return show(request, "webui/tokens.html", context)


def _counted(rows: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    states = [("", "All"), ("active", "Active"), ("expired", "Expired"), ("revoked", "Revoked")]
    return [(word, label, sum(not word or row["state"] == word for row in rows)) for word, label in states]


@page(None)
def profile(request: HttpRequest) -> HttpResponse:
    """Show a person's preferences, roles and password."""
    actor = accounts.actor_of(request)
    account = accounts.account_of(request)
    me = accounts.me(account, actor)
    context = {
        "nav": "profile",
        "me": me,
        "role_word": account.get_role_display(),
        "scopes": scope_rows(actor.scopes),
        "zones": sorted(available_timezones()),
    }
    return show(request, "webui/profile.html", context)
