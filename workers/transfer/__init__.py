"""The state plane: content-addressed tensors that survive their process."""

from workers.transfer.base import CorruptState, Manifest, StateError, StateFull, StateMissing, StatePlane, Tensors
from workers.transfer.local import LocalTier

__all__ = [
    "CorruptState", "LocalTier", "Manifest", "StateError", "StateFull", "StateMissing", "StatePlane", "Tensors",
]  # fmt: skip
