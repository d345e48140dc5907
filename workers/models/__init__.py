"""Where policies come from: tiny Qwen2-style models made from a seed, or any Hugging Face folder.

Invariant: equal (source, vocabulary, seed) give equal weights, on every machine and in every process; the global random
state of torch is neither read nor changed.
"""

from workers.models.architecture import Architecture, UnsupportedModel, architecture_of
from workers.models.factory import build_model
from workers.models.tokenizer import tokenizer_json, tokenizer_of, write_tokenizer

__all__ = [
    "Architecture",
    "UnsupportedModel",
    "architecture_of",
    "build_model",
    "tokenizer_json",
    "tokenizer_of",
    "write_tokenizer",
]
