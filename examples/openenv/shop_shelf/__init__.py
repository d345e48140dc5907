"""The environment of the shop shelf, as `openenv init` lays one out."""

from .client import ShopShelfEnv
from .models import ShopShelfAction, ShopShelfObservation

__all__ = ["ShopShelfAction", "ShopShelfEnv", "ShopShelfObservation"]
