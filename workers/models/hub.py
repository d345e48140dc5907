"""Models of a hub: the files of one commit, fetched by the library of the Hugging Face Hub into a folder of this host.

Invariants. Only the hub that the operator named is asked. Weights are safetensors: files that run code when they are
read are never fetched. What is too large is refused before any of its weights is fetched. Each failure has a code.
"""

import shutil
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.hf_api import RepoSibling

from flexmarl.contracts.hub_models import HubModel
from workers.errors import ImportRefused
from workers.hub_refusals import ASK_S, named
from workers.models.errors import ModelRefused
from workers.models.room import check_disk, check_memory

WANTED = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "*.txt", "*.md", "LICENSE*")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
WORKERS = 4
"""Files fetched at a time."""


def fetch(source: HubModel, hub: str, token: str, folder: Path, memory: int) -> str:
    """Fetch a model's files into a folder; return the commit that they are of.

    `hub` is its address; without a `token` none is sent, whatever the host has. `memory` is what the largest host has
    in bytes, 0 where that is not known. Raises ModelRefused.
    """
    try:
        with named(source, "model"):
            return _fetched(source, hub, token, folder, memory)
    except ImportRefused as error:
        raise ModelRefused(error.code, error.detail) from error


def _fetched(source: HubModel, hub: str, token: str, folder: Path, memory: int) -> str:
    found = HfApi(endpoint=hub, token=token or False).model_info(
        source.repository, revision=source.revision, files_metadata=True, timeout=ASK_S
    )
    _check(found.siblings or [], folder, memory)
    snapshot_download(
        source.repository, revision=found.sha, endpoint=hub, token=token or False, local_dir=folder / "model",
        allow_patterns=list(WANTED), etag_timeout=ASK_S, max_workers=WORKERS,
    )  # fmt: skip
    shutil.rmtree(folder / "model" / ".cache", ignore_errors=True)
    return str(found.sha)


def _check(files: list[RepoSibling], folder: Path, memory: int) -> None:
    """Refuse a model that has no weights which may be read, or more of them than there is room for."""
    names = [file.rfilename for file in files]
    weights = sum(file.size or 0 for file in files if file.rfilename.endswith(".safetensors"))
    if not any(name.endswith(".safetensors") for name in names):
        if any(name.endswith(PICKLES) for name in names):
            text = "its weights are pickles, which run code when they are read; choose one with *.safetensors"
            raise ModelRefused("pickle", text)
        raise ModelRefused("no_weights", "it has no *.safetensors; choose a model that has")
    check_memory(weights, memory)
    check_disk(folder, weights)
