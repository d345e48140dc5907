"""Routes of pools and nodes."""

from django.urls import path, re_path

from flexmarl.controlplane.inventory.api import views

urlpatterns = [
    path("pools", views.PoolsView.as_view(), name="api-pools"),
    path("pools/<str:name>", views.PoolView.as_view(), name="api-pool"),
    path("nodes", views.NodesView.as_view(), name="api-nodes"),
    path("nodes/<str:name>", views.NodeView.as_view(), name="api-node"),
    re_path(
        r"^nodes/(?P<name>[^/]+)/actions/(?P<action>cordon|uncordon)$",
        views.NodeActionView.as_view(),
        name="api-node-action",
    ),
]
