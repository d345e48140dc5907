"""Routes of sweeps."""

from django.urls import path

from flexmarl.controlplane.sweeps.api import views

urlpatterns = [
    path("sweeps", views.SweepsView.as_view(), name="api-sweeps"),
    path("sweeps/<uuid:sweep_id>", views.SweepView.as_view(), name="api-sweep"),
    path("sweeps/<uuid:sweep_id>/actions/stop", views.StopSweepView.as_view(), name="api-sweep-stop"),
    path("sweeps/<uuid:sweep_id>/actions/resume", views.ResumeSweepView.as_view(), name="api-sweep-resume"),
]
