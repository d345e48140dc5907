"""Routes of runs and operations."""

from django.urls import path, re_path

from flexmarl.contracts.events import Verb
from flexmarl.controlplane.runs.api import (
    checkpoints,
    configuration,
    lifecycle,
    many,
    program_sessions,
    queue,
    row_sets,
    saved_views,
    solve_rates,
    storage,
    views,
)

_VERBS = "|".join(verb.value for verb in Verb)

urlpatterns = [
    path("runs", views.RunsView.as_view(), name="api-runs"),
    path("runs/plan", views.PlanView.as_view(), name="api-runs-plan"),
    path("runs/measure", views.MeasureView.as_view(), name="api-runs-measure"),
    path("runs/search", many.SearchView.as_view(), name="api-runs-search"),
    path("runs/bulk", many.BulkView.as_view(), name="api-runs-bulk"),
    path("runs/by-external-id/<str:external_id>", many.ExternalRunView.as_view(), name="api-run-external"),
    path("runs/<str:run_id>", views.RunView.as_view(), name="api-run"),
    re_path(
        rf"^runs/(?P<run_id>[^/]+)/actions/(?P<verb>{_VERBS})$", views.RunActionView.as_view(), name="api-run-action"
    ),
    path("runs/<str:run_id>/actions/clone", many.CloneView.as_view(), name="api-run-clone"),
    path("runs/<str:run_id>/actions/archive", many.ArchiveRunsView.as_view(), name="api-run-archive"),
    path("runs/<str:run_id>/actions/restore", many.RestoreView.as_view(), name="api-run-restore"),
    path("runs/<str:run_id>/actions/set-priority", queue.PriorityView.as_view(), name="api-run-priority"),
    path("runs/<str:run_id>/actions/move-pool", queue.MovePoolView.as_view(), name="api-run-move-pool"),
    path(
        "datasets/<uuid:dataset_id>/versions/<int:number>/solve-rates",
        solve_rates.SolveRatesView.as_view(),
        name="api-dataset-solve-rates",
    ),
    path("runs/<str:run_id>/rows/archive", row_sets.RunRowsView.as_view(), name="api-run-rows-archive"),
    path("row-sets", row_sets.RowSetsView.as_view(), name="api-row-sets"),
    path("row-sets/<uuid:row_set_id>", row_sets.RowSetView.as_view(), name="api-row-set"),
    path(
        "row-sets/<uuid:row_set_id>/actions/archive", row_sets.ArchiveRowSetView.as_view(), name="api-row-set-archive"
    ),
    path(
        "row-sets/<uuid:row_set_id>/actions/restore", row_sets.RestoreRowSetView.as_view(), name="api-row-set-restore"
    ),
    path("queue", queue.QueueView.as_view(), name="api-queue"),
    path("nodes/<str:name>/actions/drain", queue.NodeDrainView.as_view(), name="api-node-drain"),
    path("devices/<str:device_id>/actions/drain", queue.DeviceDrainView.as_view(), name="api-device-drain"),
    path("saved-views", saved_views.SavedViewsView.as_view(), name="api-saved-views"),
    path("saved-views/<uuid:view_id>", saved_views.SavedViewView.as_view(), name="api-saved-view"),
    path("runs/<str:run_id>/actions/fork", checkpoints.ForkView.as_view(), name="api-run-fork"),
    path("runs/<str:run_id>/lineage", checkpoints.LineageView.as_view(), name="api-run-lineage"),
    path("runs/<str:run_id>/checkpoints", checkpoints.CheckpointsView.as_view(), name="api-run-checkpoints"),
    path("runs/<str:run_id>/checkpoints/<int:step>", checkpoints.CheckpointView.as_view(), name="api-run-checkpoint"),
    path(
        "runs/<str:run_id>/checkpoints/<int:step>/actions/pin", checkpoints.PinView.as_view(), name="api-checkpoint-pin"
    ),
    path(
        "runs/<str:run_id>/checkpoints/<int:step>/actions/promote",
        checkpoints.PromoteView.as_view(),
        name="api-checkpoint-promote",
    ),
    path(
        "runs/<str:run_id>/checkpoints/<int:step>/actions/unpin",
        checkpoints.UnpinView.as_view(),
        name="api-checkpoint-unpin",
    ),
    path(
        "runs/<str:run_id>/checkpoints/<int:step>/archive",
        checkpoints.ArchiveView.as_view(),
        name="api-checkpoint-archive",
    ),
    path("runs/<str:run_id>/sessions", program_sessions.SessionsView.as_view(), name="api-run-sessions"),
    path(
        "runs/<str:run_id>/sessions/<uuid:session_id>", program_sessions.SessionView.as_view(), name="api-run-session"
    ),
    path(
        "runs/<str:run_id>/sessions/<uuid:session_id>/finish",
        program_sessions.SessionFinishView.as_view(),
        name="api-run-session-finish",
    ),
    path("runs/<str:run_id>/versions", views.VersionsView.as_view(), name="api-run-versions"),
    path("runs/<str:run_id>/attempts", lifecycle.AttemptsView.as_view(), name="api-run-attempts"),
    path("runs/<str:run_id>/operations", lifecycle.RunOperationsView.as_view(), name="api-run-operations"),
    path("storage", storage.StorageView.as_view(), name="api-storage"),
    path("transitions", lifecycle.RunTransitionsView.as_view(), name="api-transitions"),
    path("runs/<str:run_id>/config-diff", configuration.ConfigDiffView.as_view(), name="api-run-config-diff"),
    path("operations/<str:operation_id>", views.OperationView.as_view(), name="api-operation"),
]
