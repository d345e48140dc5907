"""Routes of simulations and workloads."""

from django.urls import path

from flexmarl.controlplane.simulations.api import replan, views, what_if

urlpatterns = [
    path("runs/<str:run_id>/what-if", what_if.WhatIfView.as_view(), name="api-run-what-if"),
    path("runs/<str:run_id>/replan", replan.ReplanView.as_view(), name="api-run-replan"),
    path("runs/<str:run_id>/replan/actions/apply", replan.ReplanApplyView.as_view(), name="api-run-replan-apply"),
    path("runs/<str:run_id>/replan/actions/dismiss", replan.ReplanDismissView.as_view(), name="api-run-replan-dismiss"),
    path("workloads", views.WorkloadsView.as_view(), name="api-workloads"),
    path("simulations", views.SimulationsView.as_view(), name="api-simulations"),
    path("simulations/<uuid:simulation_id>", views.SimulationView.as_view(), name="api-simulation"),
    path("simulations/<uuid:simulation_id>/actions/cancel", views.CancelView.as_view(), name="api-simulation-cancel"),
    path(
        "simulations/<uuid:simulation_id>/timeline",
        views.SimulationTimelineView.as_view(),
        name="api-simulation-timeline",
    ),
]
