"""Imported models as contents of the state plane, and what hosts that use them read of one.

Invariants: one digest covers everything of a model: its weights, its configuration, its tokenizer and its template,
each file byte for byte. Weights lie on a host once, in its state plane, and are read from there; its folder holds the
small files alone, made of a content that was checked against its digest.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from workers.made_folders import make_once, wanted
from workers.models.cards import CARD
from workers.models.errors import UnsupportedModel
from workers.models.opening import TOKENIZER_BYTES, ModelFolder, making
from workers.models.tensors import read_tensors, tensor_files
from workers.transfer import ContentManifest, LocalTier, StateError

if TYPE_CHECKING:
    import torch

OWNER = "models"
"""Owner of the claims that a node has on models."""
KIND = "model"
FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", CARD,
)  # fmt: skip
"""What a content has beside the weights, as far as the model has it."""
WAIT_S = 120.0
"""How long a process waits for its node to fetch a model."""
_LOOK_S = 0.2
FILE = "file:"
"""Before the name of a file, which lies beside the weights as a tensor of bytes."""


def put_model(home: str | Path, path: str) -> ContentManifest:
    """Store a folder's model in the state plane. Raises UnsupportedModel or StateFull."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    with ModelFolder(path) as folder:
        for name in tensor_files(folder):
            tensors |= read_tensors(folder, name)
        for name in (name for name in FILES if folder.has(name)):
            tensors[FILE + name] = torch.frombuffer(bytearray(folder.read(name, TOKENIZER_BYTES)), dtype=torch.uint8)
    return LocalTier(home, OWNER).put(tensors, {"kind": KIND})


def stored_folder(digest: str, wait_s: float = WAIT_S) -> Path:
    """Return the folder with an imported model's small files on this host, whose node fetches the model.

    Raises UnsupportedModel.
    """
    if not digest:
        raise UnsupportedModel("the model has no digest yet; create the run again")
    models, _ = making()
    place, tier, until = models / digest, LocalTier(models.parent, OWNER), time.monotonic() + wait_s
    try:
        while tier.locate(digest) is None:
            if time.monotonic() > until:
                text = f"no host that holds the imported model {digest[:12]} answered within {wait_s:.0f} s"
                raise UnsupportedModel(f"{text}; start the one that imported it, or import it again")
            time.sleep(_LOOK_S)
        if not wanted(place):
            make_once(place, lambda temporary: _write(tier, digest, temporary))
    except (StateError, OSError) as error:
        raise _unreadable(error) from error
    return place


def stored_weights(digest: str) -> "dict[str, torch.Tensor]":
    """Return an imported model's weights as they were imported. Raises UnsupportedModel."""
    tier = LocalTier(stored_folder(digest).parents[1], OWNER)
    try:
        tensors = tier.mapped(digest)
    except (StateError, OSError) as error:
        raise _unreadable(error) from error
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(FILE)}


def stored_shapes(digest: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of each of an imported model's weights, without reading any. Raises UnsupportedModel."""
    tier = LocalTier(stored_folder(digest).parents[1], OWNER)
    try:
        entries = tier.description(digest).tensors
    except (StateError, OSError) as error:
        raise _unreadable(error) from error
    return {entry.name: entry.shape for entry in entries if not entry.name.startswith(FILE)}


def _unreadable(error: Exception) -> UnsupportedModel:
    return UnsupportedModel(f"the imported model cannot be read on this host: {error}")


def _write(tier: LocalTier, digest: str, folder: Path) -> None:
    folder.mkdir()
    for name, tensor in tier.mapped(digest).items():
        if name.startswith(FILE):
            (folder / name.removeprefix(FILE)).write_bytes(tensor.numpy().tobytes())
