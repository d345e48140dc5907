"""Imported models as contents of the state plane, and as folders of the hosts that use them.

Invariants: one digest covers everything of a model: its weights, its configuration, its tokenizer and its template,
each file byte for byte. A folder is made of a content that was checked against its digest.
"""

import time
from pathlib import Path

from workers.models.errors import UnsupportedModel
from workers.models.making import make_once
from workers.models.opening import TOKENIZER_BYTES, ModelFolder, making
from workers.models.tensors import read_tensors, tensor_files
from workers.transfer import LocalTier, Manifest, StateError

OWNER = "models"
"""Owner of the claims that a node has on models."""
KIND = "model"
FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja",
)  # fmt: skip
"""What a content has beside the weights, as far as the model has it."""
WAIT_S = 120.0
"""How long a process waits for its node to fetch a model."""
_LOOK_S = 0.2
_FILE = "file:"


def put_model(home: str | Path, path: str) -> Manifest:
    """Store a folder's model in the state plane. Raises UnsupportedModel or StateFull."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    with ModelFolder(path) as folder:
        for name in tensor_files(folder):
            tensors |= read_tensors(folder, name, as_is=True)
        for name in (name for name in FILES if folder.has(name)):
            tensors[_FILE + name] = torch.frombuffer(bytearray(folder.read(name, TOKENIZER_BYTES)), dtype=torch.uint8)
    return LocalTier(home, OWNER).put(tensors, {"kind": KIND})


def stored_folder(digest: str, wait_s: float = WAIT_S) -> Path:
    """Return the folder of an imported model on this host, whose node fetches it. Raises UnsupportedModel."""
    if not digest:
        raise UnsupportedModel("the model has no digest yet; create the run again")
    models, _ = making()
    place, until = models / digest, time.monotonic() + wait_s
    while not place.is_dir():
        try:
            if LocalTier(models.parent, OWNER).locate(digest) is not None:
                make_once(place, lambda temporary: _write(models.parent, digest, temporary))
                break
        except (StateError, OSError) as error:
            raise UnsupportedModel(f"the imported model cannot be read on this host: {error}") from error
        if time.monotonic() > until:
            text = f"no host that holds the imported model {digest[:12]} answered within {wait_s:.0f} s"
            raise UnsupportedModel(f"{text}; start the one that imported it, or import it again")
        time.sleep(_LOOK_S)
    return place


def _write(home: Path, digest: str, folder: Path) -> None:
    from safetensors.torch import save_file

    tensors = LocalTier(home, OWNER).get(digest)
    folder.mkdir()
    for name in [name for name in tensors if name.startswith(_FILE)]:
        (folder / name.removeprefix(_FILE)).write_bytes(tensors.pop(name).numpy().tobytes())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
