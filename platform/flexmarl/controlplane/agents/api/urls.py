"""Routes of agents."""

from django.urls import path

from flexmarl.controlplane.agents.api import views

urlpatterns = [
    path("agents", views.AgentsView.as_view(), name="api-agents"),
    path("agents/preview", views.PreviewView.as_view(), name="api-agents-preview"),
    path("agents/<uuid:agent_id>", views.AgentView.as_view(), name="api-agent"),
    path("agents/<uuid:agent_id>/versions", views.AgentVersionsView.as_view(), name="api-agent-versions"),
    path("agents/<uuid:agent_id>/versions/<int:number>", views.AgentVersionView.as_view(), name="api-agent-version"),
]
