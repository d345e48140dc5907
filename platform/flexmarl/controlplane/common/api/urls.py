"""Routes of the API's own description."""

from django.urls import path

from flexmarl.controlplane.common.api.docs import DocsView, SchemaView

urlpatterns = [
    path("openapi.json", SchemaView.as_view(), name="api-openapi"),
    path("docs", DocsView.as_view(), name="api-docs"),
]
