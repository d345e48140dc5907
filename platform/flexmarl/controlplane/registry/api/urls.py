"""Routes of models."""

from django.urls import path

from flexmarl.controlplane.registry.api import views

urlpatterns = [
    path("models", views.ModelsView.as_view(), name="api-models"),
    path("models/<uuid:model_id>", views.ModelView.as_view(), name="api-model"),
    path("models/<uuid:model_id>/actions/cancel", views.CancelView.as_view(), name="api-model-cancel"),
    path("models/<uuid:model_id>/actions/archive", views.ArchiveView.as_view(), name="api-model-archive"),
    path("models/<uuid:model_id>/actions/restore", views.RestoreView.as_view(), name="api-model-restore"),
]
