"""Signing in and out, tokens, profile."""

from zoneinfo import available_timezones

from django.contrib.auth import views as auth
from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts import queries as accounts
from flexmarl.controlplane.common.scopes import Scope
from webui.views.base import frame, page, show


class SignIn(auth.LoginView):
    """The only page that people who are not signed in can see."""

    template_name = "webui/sign_in.html"
    redirect_authenticated_user = True

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
    rows = [accounts.token_row(token) for token in accounts.tokens_of(request.user.pk).order_by("-created_at")]
    context = {
        "nav": "tokens",
        "tokens": rows,
        "scopes": sorted(str(scope) for scope in actor.scopes),
        "origin": f"{request.scheme}://{request.get_host()}",
    }
    return show(request, "webui/tokens.html", context)


@page()
def profile(request: HttpRequest) -> HttpResponse:
    """Show a person's theme, time zone and role."""
    context = {
        "nav": "profile",
        "me": accounts.me(request.user, accounts.actor_of(request)),
        "zones": sorted(available_timezones()),
    }
    return show(request, "webui/profile.html", context)
