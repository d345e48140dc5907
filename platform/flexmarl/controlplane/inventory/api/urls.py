"""Routes of pools, quotas, nodes and their change log."""

from django.urls import path, re_path

from flexmarl.controlplane.inventory.api import node_joins, node_tokens, provided, views

urlpatterns = [
    path("pools", views.PoolsView.as_view(), name="api-pools"),
    path("pools/<str:name>", views.PoolView.as_view(), name="api-pool"),
    path("pools/<str:name>/quotas/<str:project>", views.QuotaView.as_view(), name="api-quota"),
    path("pools/<str:name>/submission", provided.SubmissionView.as_view(), name="api-pool-submission"),
    path("pools/<str:name>/jobs", provided.HostJobsView.as_view(), name="api-pool-jobs"),
    path("pools/<str:name>/jobs/<uuid:job>", provided.HostJobView.as_view(), name="api-pool-job"),
    path(
        "pools/<str:name>/jobs/<uuid:job>/actions/cancel",
        provided.CancelHostJobView.as_view(),
        name="api-pool-job-cancel",
    ),
    path("quotas", views.QuotasView.as_view(), name="api-quotas"),
    path("projects/<str:project>/default-pool", views.ProjectPoolView.as_view(), name="api-project-pool"),
    path("changes", views.ChangesView.as_view(), name="api-changes"),
    path("node-tokens", node_tokens.NodeTokensView.as_view(), name="api-node-tokens"),
    path("node-tokens/<uuid:token_id>", node_tokens.NodeTokenView.as_view(), name="api-node-token"),
    path(
        "node-tokens/<uuid:token_id>/actions/rotate",
        node_tokens.NodeTokenRotationView.as_view(),
        name="api-node-token-rotate",
    ),
    path("node-joins", node_joins.NodeJoinsView.as_view(), name="api-node-joins"),
    path("node-joins/<uuid:join_id>", node_joins.NodeJoinView.as_view(), name="api-node-join"),
    path(
        "node-joins/<uuid:join_id>/actions/approve",
        node_joins.NodeJoinApprovalView.as_view(),
        name="api-node-join-approve",
    ),
    path(
        "node-joins/<uuid:join_id>/actions/reject",
        node_joins.NodeJoinRejectionView.as_view(),
        name="api-node-join-reject",
    ),
    path("nodes", views.NodesView.as_view(), name="api-nodes"),
    path("nodes/<str:name>", views.NodeView.as_view(), name="api-node"),
    re_path(
        r"^nodes/(?P<name>[^/]+)/actions/(?P<action>cordon|enable)$",
        views.NodeActionView.as_view(),
        name="api-node-action",
    ),
]
