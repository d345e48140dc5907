"""The new page answers who may open it, and is linked, described by REST calls, and among the pages that are tested."""

import django

django.setup()

from django.test import RequestFactory  # noqa: E402
from django.urls import resolve, reverse  # noqa: E402

from flexmarl.controlplane.accounts.models import User  # noqa: E402
from tests.browser.test_matrix import EXAMPLES  # noqa: E402
from tests.support.permissions import PAGES  # noqa: E402
from webui.calls import CALLS  # noqa: E402


def opened(path: str) -> str:
    """Open a page as somebody without a part in any project: nothing is read from a database."""
    request = RequestFactory().get(path)
    request.resolver_match = resolve(path)
    request.session = {}
    request.user = User(username="vera")
    request.user.__dict__["roles"] = {}  # a cached property, which would be read from rows
    response = request.resolver_match.func(request)
    assert response.status_code == 200, response.content.decode()[:2000]
    return response.content.decode()


path = reverse("webui:about")
assert "plug-ins." in opened(path)
assert f'href="{path}"' in opened("/help"), "not linked"
assert CALLS["about"], "no REST calls"
assert PAGES["about"].scope == resolve(path).func.scope, "no row in the permission matrix"
assert EXAMPLES["about"] == path, "not among the pages that are tested"
