"""The environment of the hidden number, as `openenv init` lays one out."""

from .client import HiddenNumberEnv
from .models import HiddenNumberAction, HiddenNumberObservation

__all__ = ["HiddenNumberAction", "HiddenNumberEnv", "HiddenNumberObservation"]
