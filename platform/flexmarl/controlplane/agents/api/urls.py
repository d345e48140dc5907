"""Routes of agents and teams."""

from django.urls import path

from flexmarl.controlplane.agents.api import team_views, views

urlpatterns = [
    path("agents", views.AgentsView.as_view(), name="api-agents"),
    path("agents/preview", views.PreviewView.as_view(), name="api-agents-preview"),
    path("agents/<uuid:agent_id>", views.AgentView.as_view(), name="api-agent"),
    path("agents/<uuid:agent_id>/versions", views.AgentVersionsView.as_view(), name="api-agent-versions"),
    path("agents/<uuid:agent_id>/versions/<int:number>", views.AgentVersionView.as_view(), name="api-agent-version"),
    path("teams", team_views.TeamsView.as_view(), name="api-teams"),
    path("teams/check", team_views.TeamCheckView.as_view(), name="api-teams-check"),
    path("teams/<uuid:team_id>", team_views.TeamView.as_view(), name="api-team"),
    path("teams/<uuid:team_id>/versions", team_views.TeamVersionsView.as_view(), name="api-team-versions"),
    path("teams/<uuid:team_id>/versions/<int:number>", team_views.TeamVersionView.as_view(), name="api-team-version"),
]
