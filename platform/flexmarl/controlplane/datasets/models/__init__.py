"""Datasets of a project."""

from flexmarl.controlplane.datasets.models.dataset import Dataset, DatasetVersion
from flexmarl.controlplane.datasets.models.file import DatasetFile, FilePart
from flexmarl.controlplane.datasets.models.row import ContentRow

__all__ = ["ContentRow", "Dataset", "DatasetFile", "DatasetVersion", "FilePart"]
