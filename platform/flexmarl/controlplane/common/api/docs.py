"""The OpenAPI document and its viewer, served from this installation alone."""

from typing import Any, ClassVar

from csp.decorators import csp_update
from django.utils.decorators import method_decorator
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from flexmarl.controlplane.common.api.permissions import PUBLIC


class OnceGenerator(SchemaGenerator):
    """Makes the document once per process: it is the same for everybody, and routes do not change."""

    _made: ClassVar[dict[str, Any] | None] = None

    def get_schema(self, request: Any = None, public: bool = False) -> dict[str, Any]:
        """Return the document."""
        if OnceGenerator._made is None:
            OnceGenerator._made = SchemaGenerator().get_schema(request=request, public=public)
        return OnceGenerator._made


class SchemaView(SpectacularAPIView):
    """The document itself."""

    generator_class = OnceGenerator

    scopes = {"GET": PUBLIC}
    renderer_classes = [OpenApiJsonRenderer]
    permission_classes = []


@method_decorator(csp_update({"style-src": ["'unsafe-inline'"]}), name="dispatch")
class DocsView(SpectacularSwaggerSplitView):
    """A page to read and try the API. Its script is a second request, so that no inline script is needed.

    Its viewer alone writes styles into the page, so it alone may.
    """

    scopes = {"GET": PUBLIC}
    url_name = "api-openapi"
    permission_classes = []
