"""The OpenAPI document and its viewer, served from this installation alone."""

from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from flexmarl.controlplane.common.api.permissions import PUBLIC


class SchemaView(SpectacularAPIView):
    """The document itself."""

    scopes = {"GET": PUBLIC}
    renderer_classes = [OpenApiJsonRenderer]
    permission_classes = []


class DocsView(SpectacularSwaggerSplitView):
    """A page to read and try the API. Its script is a second request, so that no inline script is needed."""

    scopes = {"GET": PUBLIC}
    url_name = "api-openapi"
    permission_classes = []
