"""Sides of the matrices of a language model whose layers have attention and a gated MLP."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    hidden: int
    layers: int
    mlp: int
    heads: int
    kv_heads: int
    vocabulary: int
    """Rows of the embedding; 0: as many as the environment has words."""

    @property
    def key_value(self) -> int:
        """Outputs of the matrix of keys, and of that of values."""
        return self.hidden // self.heads * self.kv_heads

    def sides(self, target: str) -> tuple[int, int]:
        """Return outputs and inputs of a matrix that may be adapted."""
        if target in ("gate_proj", "up_proj"):
            return self.mlp, self.hidden
        if target in ("k_proj", "v_proj"):
            return self.key_value, self.hidden
        return self.hidden, self.mlp if target == "down_proj" else self.hidden
