"""Models of the installation, which the store keeps and Django only reads."""

from flexmarl.controlplane.registry.models.language_model import LanguageModel

__all__ = ["LanguageModel"]
