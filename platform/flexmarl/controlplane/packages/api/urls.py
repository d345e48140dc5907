"""Routes of packages."""

from django.urls import path

from flexmarl.controlplane.packages.api import views

urlpatterns = [
    path("packages", views.PackagesView.as_view(), name="api-packages"),
    path("packages/files", views.PackageFilesView.as_view(), name="api-package-files"),
    path("packages/<uuid:package_id>", views.PackageView.as_view(), name="api-package"),
    path("packages/<uuid:package_id>/actions/cancel", views.CancelBuildView.as_view(), name="api-package-cancel"),
    path("packages/<uuid:package_id>/actions/archive", views.ArchivePackageView.as_view(), name="api-package-archive"),
    path("packages/<uuid:package_id>/actions/restore", views.RestorePackageView.as_view(), name="api-package-restore"),
]
