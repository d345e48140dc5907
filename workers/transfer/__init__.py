"""The state plane: content-addressed tensors that survive their process."""

from workers.transfer.base import (
    ContentManifest,
    CorruptState,
    StateError,
    StateFull,
    StateMissing,
    StatePlane,
    Tensors,
)
from workers.transfer.local import LocalTier

__all__ = [
    "ContentManifest",
    "CorruptState",
    "LocalTier",
    "StateError",
    "StateFull",
    "StateMissing",
    "StatePlane",
    "Tensors",
]  # fmt: skip
