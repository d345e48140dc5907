"""Tables of models."""

from flexmarl.controlplane.registry.models.language_model import LanguageModel
from flexmarl.controlplane.registry.models.upload import ModelUpload

__all__ = ["LanguageModel", "ModelUpload"]
