"""Datasets of a project."""

from flexmarl.controlplane.datasets.models.dataset import Dataset, DatasetVersion
from flexmarl.controlplane.datasets.models.fetch import DatasetFetch
from flexmarl.controlplane.datasets.models.file import DatasetFile, FilePart
from flexmarl.controlplane.datasets.models.row import StoredRow

__all__ = ["Dataset", "DatasetFetch", "DatasetFile", "DatasetVersion", "FilePart", "StoredRow"]
