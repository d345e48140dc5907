"""Routes of models."""

from django.urls import path

from flexmarl.controlplane.registry.api import upload_views, views

urlpatterns = [
    path("models", views.RegisteredModelsView.as_view(), name="api-models"),
    path("models/uploads", upload_views.UploadsView.as_view(), name="api-model-uploads"),
    path("models/uploads/<uuid:upload_id>", upload_views.UploadView.as_view(), name="api-model-upload"),
    path(
        "models/uploads/<uuid:upload_id>/files/<str:file>",
        upload_views.UploadFileView.as_view(),
        name="api-model-upload-file",
    ),
    path("models/<uuid:model_id>", views.RegisteredModelView.as_view(), name="api-model"),
    path("models/<uuid:model_id>/archive", views.ModelArchiveView.as_view(), name="api-model-download"),
    path("models/<uuid:model_id>/actions/cancel", views.CancelImportView.as_view(), name="api-model-cancel"),
    path("models/<uuid:model_id>/actions/archive", views.ArchiveModelView.as_view(), name="api-model-archive"),
    path("models/<uuid:model_id>/actions/restore", views.RestoreModelView.as_view(), name="api-model-restore"),
]
