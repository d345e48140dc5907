"""Routes of the pipeline: where device time goes, what passes through, and what the advisor says of it."""

from django.urls import path

from flexmarl.controlplane.telemetry.api import (
    advice,
    joint,
    load,
    log_views,
    pace,
    planned,
    swaps,
    task_beliefs,
    timelines,
    transitions,
)

_RUN = "runs/<str:run_id>"

urlpatterns = [
    path(f"{_RUN}/advisories", advice.AdvisoriesView.as_view(), name="api-run-advisories"),
    path(f"{_RUN}/bubble", pace.BubbleView.as_view(), name="api-run-bubble"),
    path(f"{_RUN}/cohorts", joint.CohortsView.as_view(), name="api-run-cohorts"),
    path(f"{_RUN}/cost", planned.RunCostView.as_view(), name="api-run-cost"),
    path(f"{_RUN}/decisions", joint.DecisionsView.as_view(), name="api-run-decisions"),
    path(f"{_RUN}/engine-moves", load.EngineMovesView.as_view(), name="api-run-engine-moves"),
    path(f"{_RUN}/engines", load.EnginesView.as_view(), name="api-run-engines"),
    path(f"{_RUN}/lag", joint.LagView.as_view(), name="api-run-lag"),
    path(f"{_RUN}/load", load.LoadView.as_view(), name="api-run-load"),
    path(f"{_RUN}/logs", log_views.LogsView.as_view(), name="api-run-logs"),
    path(f"{_RUN}/logs/export", log_views.LogExportView.as_view(), name="api-run-logs-export"),
    path(f"{_RUN}/pipeline", pace.PipelineView.as_view(), name="api-run-pipeline"),
    path(f"{_RUN}/prediction", planned.RunPredictionView.as_view(), name="api-run-prediction"),
    path(f"{_RUN}/store", joint.StoreView.as_view(), name="api-run-store"),
    path(f"{_RUN}/swaps", swaps.SwapsView.as_view(), name="api-run-swaps"),
    path(f"{_RUN}/tasks", task_beliefs.TaskBeliefsView.as_view(), name="api-run-tasks"),
    path(f"{_RUN}/transitions", transitions.TransitionsView.as_view(), name="api-run-transitions"),
    path(f"{_RUN}/timeline", timelines.TimelineView.as_view(), name="api-run-timeline"),
    path("timeline", timelines.ClusterTimelineView.as_view(), name="api-timeline"),
]
