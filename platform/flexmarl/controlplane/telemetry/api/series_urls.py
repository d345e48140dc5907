"""Routes of series and of the agents they are about."""

from django.urls import path

from flexmarl.controlplane.telemetry.api import agents, series

_RUN = "runs/<str:run_id>"

urlpatterns = [
    path(f"{_RUN}/series", series.SeriesView.as_view(), name="api-run-series"),
    path(f"{_RUN}/series/data", series.SeriesDataView.as_view(), name="api-run-series-data"),
    path(f"{_RUN}/series/export", series.SeriesExportView.as_view(), name="api-run-series-export"),
    path(f"{_RUN}/series:batch", series.SeriesBatchView.as_view(), name="api-run-series-batch"),
    path(f"{_RUN}/agents", agents.RunAgentsView.as_view(), name="api-run-agents"),
    path(f"{_RUN}/agents/<str:role>", agents.RunAgentView.as_view(), name="api-run-agent"),
    path("series/data", series.CompareView.as_view(), name="api-series-data"),
]
