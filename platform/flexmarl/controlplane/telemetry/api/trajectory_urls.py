"""Routes of what a run's episodes were."""

from django.urls import path

from flexmarl.controlplane.telemetry.api import trajectories as views

_RUN = "runs/<str:run_id>"
_LIST = f"{_RUN}/trajectories"
_ONE = f"{_LIST}/<str:trajectory_id>"

trajectory_routes = [
    path(_LIST, views.TrajectoriesView.as_view(), name="api-run-trajectories"),
    path(f"{_LIST}/facets", views.FacetsView.as_view(), name="api-run-trajectory-facets"),
    path(f"{_LIST}/compare", views.ComparedEpisodesView.as_view(), name="api-run-trajectory-compare"),
    path(f"{_LIST}/export", views.ExportView.as_view(), name="api-run-trajectory-export"),
    path(_ONE, views.TrajectoryView.as_view(), name="api-run-trajectory"),
    path(f"{_ONE}/tokens", views.TurnTokensView.as_view(), name="api-run-trajectory-tokens"),
    path(f"{_ONE}/labels", views.LabelsView.as_view(), name="api-run-trajectory-labels"),
    path(f"{_RUN}/groups/<int:draw>", views.GroupView.as_view(), name="api-run-group"),
]
