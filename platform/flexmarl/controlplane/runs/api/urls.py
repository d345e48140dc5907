"""Routes of runs and operations."""

from django.urls import path, re_path

from flexmarl.contracts.events import Verb
from flexmarl.controlplane.runs.api import many, saved_views, views

_VERBS = "|".join(verb.value for verb in Verb)

urlpatterns = [
    path("runs", views.RunsView.as_view(), name="api-runs"),
    path("runs/plan", views.PlanView.as_view(), name="api-runs-plan"),
    path("runs/search", many.SearchView.as_view(), name="api-runs-search"),
    path("runs/bulk", many.BulkView.as_view(), name="api-runs-bulk"),
    path("runs/by-external-id/<str:external_id>", many.ExternalRunView.as_view(), name="api-run-external"),
    path("runs/<str:run_id>", views.RunView.as_view(), name="api-run"),
    re_path(
        rf"^runs/(?P<run_id>[^/]+)/actions/(?P<verb>{_VERBS})$", views.RunActionView.as_view(), name="api-run-action"
    ),
    path("runs/<str:run_id>/actions/clone", many.CloneView.as_view(), name="api-run-clone"),
    path("runs/<str:run_id>/actions/archive", many.ArchiveView.as_view(), name="api-run-archive"),
    path("runs/<str:run_id>/actions/restore", many.RestoreView.as_view(), name="api-run-restore"),
    path("saved-views", saved_views.SavedViewsView.as_view(), name="api-saved-views"),
    path("saved-views/<uuid:view_id>", saved_views.SavedViewView.as_view(), name="api-saved-view"),
    path("runs/<str:run_id>/checkpoints", views.CheckpointsView.as_view(), name="api-run-checkpoints"),
    path("runs/<str:run_id>/versions", views.VersionsView.as_view(), name="api-run-versions"),
    path("operations/<str:operation_id>", views.OperationView.as_view(), name="api-operation"),
]
