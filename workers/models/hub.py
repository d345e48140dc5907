"""Models of a hub: the files of one commit, fetched by the library of the Hugging Face Hub into a folder of this host.

Invariants. Only the hub that the operator named is asked. Weights are safetensors: files that run code when they are
read are never fetched. What is too large is refused before any of its weights is fetched. Each failure has a code.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from httpx2 import HTTPError
from huggingface_hub import HfApi, errors, snapshot_download
from huggingface_hub.hf_api import RepoSibling

from flexmarl.contracts.hub_models import HubModel
from workers.models.errors import ModelRefused
from workers.models.room import check_disk, check_memory

WANTED = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "*.txt", "*.md", "LICENSE*")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
ASK_S = 30.0
"""Longest wait for an answer about a model or a file."""
WORKERS = 4
"""Files fetched at a time."""


def fetch(source: HubModel, hub: str, token: str, folder: Path, memory: int) -> str:
    """Fetch a model's files into a folder; return the commit that they are of.

    `hub` is its address; without a `token` none is sent, whatever the host has. `memory` is what the largest host has
    in bytes, 0 where that is not known. Raises ModelRefused.
    """
    with _named(source):
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


@contextmanager
def _named(source: HubModel) -> Iterator[None]:
    """Turn what the library raises into refusals by name."""
    of = f"{source.repository} at {source.revision}"
    try:
        yield
    except errors.GatedRepoError as error:
        text = f"{source.repository} is given only to those whom its owner admitted; name the secret of such an account"
        raise ModelRefused("hub_gated", text) from error
    except errors.RevisionNotFoundError as error:
        raise ModelRefused("hub_no_revision", f"{source.repository} has no revision {source.revision}") from error
    except errors.RepositoryNotFoundError as error:
        text = f"the hub shows no model {source.repository}: it does not exist, or is shown to those who name a secret"
        raise ModelRefused("hub_not_found", text) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            text = f"the hub refuses {of} with status {status}; name the secret of an account that may read it"
            raise ModelRefused("hub_gated", text) from error
        raise ModelRefused("hub_unreachable", f"the hub answered {of} with status {status}") from error
    except errors.HFValidationError as error:
        raise ModelRefused("hub_not_found", f"the hub has no such name: {source.repository}") from error
    except (OSError, HTTPError) as error:  # connections that are refused, cut or late, and what the library makes of it
        raise ModelRefused("hub_unreachable", f"the hub gave no {of}: {type(error).__name__}") from error
