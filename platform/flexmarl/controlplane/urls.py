"""Routes of the control plane. Pages come from `webui`.

Everything under /api/ answers problems, never pages; everything under /v1/ speaks OpenAI's dialect.
"""

from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import RedirectView

from flexmarl.controlplane.common.api.exceptions import unknown_path
from flexmarl.controlplane.inventory import join_door, node_contents, node_door
from flexmarl.controlplane.registry.node_views import upload_file

urlpatterns = [
    path("admin/login/", RedirectView.as_view(pattern_name="webui:sign_in", query_string=True)),  # one door
    path("admin/password_change/", RedirectView.as_view(pattern_name="webui:profile")),  # which limits and records it
    path("admin/", admin.site.urls),
    path("api/v1/", include("flexmarl.controlplane.api")),
    re_path(r"^api(?:/(?P<path>.*))?$", unknown_path),
    path("nodes/uploads/<uuid:upload_id>/<str:name>", upload_file, name="node-upload-file"),
    path("nodes/hello", node_door.hello, name="node-hello"),
    path("nodes/join", join_door.join, name="node-join"),
    path("nodes/state/chunks/<str:name>", node_contents.chunk, name="node-chunk"),
    path("nodes/state/<str:digest>", node_contents.manifest, name="node-manifest"),
    path("nodes/state/<str:digest>/delta", node_contents.delta, name="node-delta"),
    path("v1/", include("flexmarl.controlplane.playground.api.urls")),
    path("v1", unknown_path),
    path("", include("flexmarl.controlplane.telemetry.urls")),
    path("", include("webui.urls")),
]

handler400 = "webui.views.base.bad_request_error"
handler403 = "webui.views.base.forbidden_error"
handler404 = "webui.views.base.not_found_error"
handler500 = "webui.views.base.server_error"
