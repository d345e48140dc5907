"""Routes of experiments, templates, presets."""

from django.urls import path

from flexmarl.controlplane.experiments.api import views

urlpatterns = [
    path("experiments", views.ExperimentsView.as_view(), name="api-experiments"),
    path("experiments/<uuid:experiment_id>", views.ExperimentView.as_view(), name="api-experiment"),
    path("templates", views.TemplatesView.as_view(), name="api-templates"),
    path("templates/<slug:name>", views.TemplateView.as_view(), name="api-template"),
    path("presets", views.PresetsView.as_view(), name="api-presets"),
    path("plugins", views.PluginsView.as_view(), name="api-plugins"),
    path("config-schema", views.ConfigSchemaView.as_view(), name="api-config-schema"),
]
