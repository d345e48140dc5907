"""Default deny: a view says per method which scope it needs; a method it does not name is refused.

The scope must be held somewhere; whether it is held in the project of the object, queries and actions check.
"""

from typing import Any

from rest_framework.exceptions import MethodNotAllowed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from flexmarl.controlplane.common.problems import PermissionDenied, Unauthenticated
from flexmarl.controlplane.common.scopes import Scope

SIGNED_IN = "signed_in"
"""For views that need a caller but no scope: what people see of themselves."""
PUBLIC = "public"


class Declared(BasePermission):
    """Checks `view.scopes`: method -> Scope, SIGNED_IN or PUBLIC."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Raise the problem that says what is missing."""
        method = request.method or ""
        if method.lower() not in view.http_method_names or not hasattr(view, method.lower()):
            raise MethodNotAllowed(method)
        needed = getattr(view, "scopes", {}).get("GET" if method == "HEAD" else method)
        if method == "OPTIONS" or needed == PUBLIC:
            return True
        if not request.user.is_authenticated:
            raise Unauthenticated("Sign in, or send a token as `Authorization: Bearer fmx_...`.")
        if needed == SIGNED_IN:
            return True
        if not isinstance(needed, Scope):
            raise PermissionDenied("This method is not allowed.")
        everywhere, projects = request.user.everywhere, request.user.in_projects
        token: Any = request.auth
        if token is not None:
            everywhere, projects = token.narrow(everywhere, projects)
        if needed not in everywhere.union(*projects.values()):
            raise PermissionDenied(f"This needs the scope {needed}.", extra={"required_scopes": [str(needed)]})
        return True
