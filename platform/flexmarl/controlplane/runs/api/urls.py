"""Routes of runs and operations."""

from django.urls import path, re_path

from flexmarl.contracts.events import Verb
from flexmarl.controlplane.runs.api import views

_VERBS = "|".join(verb.value for verb in Verb)

urlpatterns = [
    path("runs", views.RunsView.as_view(), name="api-runs"),
    path("runs/plan", views.PlanView.as_view(), name="api-runs-plan"),
    path("runs/<str:run_id>", views.RunView.as_view(), name="api-run"),
    re_path(
        rf"^runs/(?P<run_id>[^/]+)/actions/(?P<verb>{_VERBS})$", views.RunActionView.as_view(), name="api-run-action"
    ),
    path("runs/<str:run_id>/checkpoints", views.CheckpointsView.as_view(), name="api-run-checkpoints"),
    path("runs/<str:run_id>/versions", views.VersionsView.as_view(), name="api-run-versions"),
    path("operations/<str:operation_id>", views.OperationView.as_view(), name="api-operation"),
]
