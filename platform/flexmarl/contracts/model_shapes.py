"""Sides of the matrices of a language model whose layers have attention and a gated MLP."""

from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import ConfigDict


@dataclass(frozen=True, slots=True)
class ModelShape:
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    hidden: int
    layers: int
    mlp: int
    heads: int
    kv_heads: int
    vocabulary: int
    """Rows of the embedding; 0: as many as the environment has words."""
    head: int = field(default=0, kw_only=True)
    """Size of a head; 0: what is left of `hidden` for each."""

    @property
    def queries(self) -> int:
        """Outputs of the matrix of queries."""
        return self.heads * self.head_size

    @property
    def head_size(self) -> int:
        return self.head or self.hidden // self.heads

    @property
    def key_value(self) -> int:
        """Outputs of the matrix of keys, and of that of values."""
        return self.head_size * self.kv_heads

    def sides(self, target: str) -> tuple[int, int]:
        """Return outputs and inputs of a matrix that may be adapted."""
        if target in ("gate_proj", "up_proj"):
            return self.mlp, self.hidden
        if target in ("k_proj", "v_proj"):
            return self.key_value, self.hidden
        if target == "q_proj":
            return self.queries, self.hidden
        return self.hidden, self.mlp if target == "down_proj" else self.queries
