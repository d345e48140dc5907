"""Routes of models."""

from django.urls import path

from flexmarl.controlplane.registry.api import views

urlpatterns = [
    path("models", views.RegisteredModelsView.as_view(), name="api-models"),
    path("models/<uuid:model_id>", views.RegisteredModelView.as_view(), name="api-model"),
    path("models/<uuid:model_id>/archive", views.ModelArchiveView.as_view(), name="api-model-download"),
    path("models/<uuid:model_id>/actions/cancel", views.CancelImportView.as_view(), name="api-model-cancel"),
    path("models/<uuid:model_id>/actions/archive", views.ArchiveModelView.as_view(), name="api-model-archive"),
    path("models/<uuid:model_id>/actions/restore", views.RestoreModelView.as_view(), name="api-model-restore"),
]
