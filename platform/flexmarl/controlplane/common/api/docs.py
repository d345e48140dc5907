"""The OpenAPI document and its viewer, served from this installation alone."""

from csp.decorators import csp_update
from django.utils.decorators import method_decorator
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from flexmarl.controlplane.common.api.permissions import PUBLIC


class SchemaView(SpectacularAPIView):
    """The document itself."""

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
