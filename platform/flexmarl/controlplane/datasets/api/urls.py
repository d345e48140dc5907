"""Routes of datasets."""

from django.urls import path

from flexmarl.controlplane.datasets.api import fetch_views, views

_ONE = "datasets/<uuid:dataset_id>"
_FETCH = "datasets/fetches/<uuid:fetch_id>"
_VERSION = f"{_ONE}/versions/<int:number>"
urlpatterns = [
    path("datasets", views.DatasetsView.as_view(), name="api-datasets"),
    path("datasets/files", views.DatasetFilesView.as_view(), name="api-dataset-files"),
    path("datasets/files/<str:digest>", fetch_views.DatasetFileView.as_view(), name="api-dataset-file"),
    path("datasets/fetches", fetch_views.DatasetFetchesView.as_view(), name="api-dataset-fetches"),
    path(_FETCH, fetch_views.DatasetFetchView.as_view(), name="api-dataset-fetch"),
    path(f"{_FETCH}/actions/cancel", fetch_views.CancelDatasetFetchView.as_view(), name="api-dataset-fetch-cancel"),
    path("datasets/preview", views.DatasetPreviewView.as_view(), name="api-dataset-preview"),
    path(_ONE, views.DatasetView.as_view(), name="api-dataset"),
    path(f"{_ONE}/actions/archive", views.ArchiveDatasetView.as_view(), name="api-dataset-archive"),
    path(f"{_ONE}/actions/restore", views.RestoreDatasetView.as_view(), name="api-dataset-restore"),
    path(f"{_ONE}/versions", views.DatasetVersionsView.as_view(), name="api-dataset-versions"),
    path(_VERSION, views.DatasetVersionView.as_view(), name="api-dataset-version"),
    path(f"{_VERSION}/file", views.DatasetDownloadView.as_view(), name="api-dataset-download"),
    path(f"{_VERSION}/rows", views.DatasetRowsView.as_view(), name="api-dataset-rows"),
    path(f"{_VERSION}/rows/<int:place>/score", views.DatasetScoreView.as_view(), name="api-dataset-score"),
]
