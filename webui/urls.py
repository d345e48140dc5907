"""Addresses of the pages. `parts` answer fragments of a page, `figures` answers chart data."""

from django.urls import path
from django.views.generic import RedirectView

from webui.views import (
    account,
    agent_definitions,
    attempts,
    auditing,
    checkpoints,
    checks,
    cluster,
    comparison,
    datasets,
    feed,
    helping,
    home,
    joint,
    load,
    models,
    moved,
    new_run,
    overview,
    people,
    pipeline,
    playground,
    queue,
    run,
    run_agents,
    run_config,
    run_metrics,
    runs,
    simulations,
    storage,
    team,
    timeline,
    trajectories,
    what_if,
)

app_name = "webui"
MOVED = {
    "agents": "metrics/agents",
    "agents/<str:role>": "metrics/agents/%(role)s",
    "pipeline": "performance",
    "load": "performance/load",
    "timeline": "performance/timeline",
    "what-if": "performance/what-if",
    "events": "logs",
    "attempts": "config/attempts",
    "playground": "trajectories/playground",
}
"""Former address of a page of a run -> where it is now; what people saved leads on, with its query."""
urlpatterns = [
    path("", home.home, name="home"),
    path("sign-in", account.SignIn.as_view(), name="sign_in"),
    path("sign-out", account.SignOut.as_view(), name="sign_out"),
    # glossary, keys, components
    path("help", helping.help_page, name="help"),
    path("help/plugins", helping.plugins, name="plugins"),
    path("help/components", helping.components, name="components"),
    # hardware
    path("cluster", cluster.cluster, name="cluster"),
    path("queue", queue.queue_page, name="queue"),
    path("storage", storage.storage, name="storage"),
    # the orchestrator on a virtual cluster
    path("simulations", simulations.listing, name="simulations"),
    path("simulations/new", simulations.new, name="new_simulation"),
    path("simulations/<uuid:simulation_id>", simulations.detail, name="simulation"),
    path("simulations/<uuid:simulation_id>/figures", simulations.figures, name="simulation_figures"),
    path("simulations/<uuid:simulation_id>/figures.csv", simulations.export, name="simulation_csv"),
    # models that were imported
    path("models", models.listing, name="models"),
    path("models/import", models.new, name="import_model"),
    path("models/<uuid:model_id>", models.detail, name="model"),
    # datasets that were imported
    path("datasets", datasets.listing, name="datasets"),
    path("datasets/import", datasets.new, name="import_dataset"),
    path("datasets/<uuid:dataset_id>", datasets.detail, name="dataset"),
    # people and what they did
    path("members", people.members, name="members"),
    path("service-accounts", people.service_accounts, name="service_accounts"),
    path("projects", people.projects, name="projects"),
    path("users", people.users, name="users"),
    path("audit", auditing.trail, name="audit"),
    path("settings/tokens", account.tokens, name="tokens"),
    path("settings/profile", account.profile, name="profile"),
    # agent definitions
    path("agents", agent_definitions.listing, name="agent_definitions"),
    path("agents/new", agent_definitions.new, name="new_agent_definition"),
    path("agents/<uuid:agent_id>", agent_definitions.detail, name="agent_definition"),
    path("runs", runs.run_list, name="runs"),
    path("runs/new", new_run.new_run, name="new_run"),
    path("runs/new/graph", new_run.graph, name="new_run_graph"),
    path("runs/new/text", new_run.text, name="new_run_text"),
    path("runs/<str:key>", overview.overview, name="run"),
    path("runs/<str:key>/figures", overview.figures, name="figures"),
    # one run's figures: metrics, agents, configuration
    path("runs/<str:key>/metrics", run_metrics.metrics, name="metrics"),
    path("runs/<str:key>/metrics/agents", run_agents.agents, name="agents"),
    path("runs/<str:key>/metrics/agents/<str:role>", run_agents.agent, name="agent"),
    path("runs/<str:key>/parts/agents", run_agents.agents_part, name="agents_part"),
    path("runs/<str:key>/parts/agents/<str:role>", run_agents.agent_part, name="agent_part"),
    path("runs/<str:key>/config", run_config.config, name="config"),
    path("runs/<str:key>/config.yaml", run_config.download, name="config_yaml"),
    path("runs/<str:key>/parts/header", run.header_part, name="header_part"),
    path("runs/<str:key>/parts/summary", overview.summary_part, name="summary_part"),
    path("runs/<str:key>/parts/planned", overview.planned_part, name="planned_part"),
    path("runs/<str:key>/parts/timeline", timeline.timeline_part, name="timeline_part"),
    path("runs/<str:key>/parts/checks", checks.checks_part, name="checks_part"),
    path("runs/<str:key>/parts/events", feed.events_part, name="events_part"),
    path("runs/<str:key>/parts/speaking", team.speaking_part, name="speaking_part"),
    path("runs/<str:key>/parts/trajectories", trajectories.rows_part, name="trajectory_rows"),
    path("runs/<str:key>/parts/trajectories/<str:tid>", trajectories.viewer_part, name="trajectory_part"),
    path("runs/<str:key>/trajectories", trajectories.listing, name="trajectories"),
    path("runs/<str:key>/trajectories/compare", comparison.compare, name="trajectory_compare"),
    path("runs/<str:key>/trajectories/playground", playground.talk, name="playground"),
    path("runs/<str:key>/trajectories/<str:tid>", trajectories.detail, name="trajectory"),
    path("runs/<str:key>/checkpoints", checkpoints.checkpoints, name="checkpoints"),
    # pipeline, timelines, feed
    path("cluster/timeline", timeline.cluster_timeline, name="cluster_timeline"),
    path("runs/<str:key>/performance", pipeline.pipeline, name="pipeline"),
    path("runs/<str:key>/parts/pipeline", pipeline.pipeline_part, name="pipeline_part"),
    path("runs/<str:key>/parts/joint", joint.joint_part, name="joint_part"),
    path("runs/<str:key>/parts/store", joint.store_part, name="store_part"),
    path("runs/<str:key>/parts/decisions", joint.decisions_part, name="decisions_part"),
    path("runs/<str:key>/parts/transitions", moved.transitions_part, name="transitions_part"),
    path("runs/<str:key>/performance/load", load.load, name="load"),
    path("runs/<str:key>/parts/load", load.load_part, name="load_part"),
    path("runs/<str:key>/performance/timeline", timeline.timeline, name="timeline"),
    path("runs/<str:key>/logs", feed.events, name="events"),
    path("runs/<str:key>/config/attempts", attempts.attempts, name="attempts"),
    path("runs/<str:key>/performance/what-if", what_if.panel, name="what_if"),
]
urlpatterns += [
    path(f"runs/<str:key>/{old}", RedirectView.as_view(url=f"/runs/%(key)s/{new}", permanent=True, query_string=True))
    for old, new in MOVED.items()
]
