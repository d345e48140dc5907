"""Models of a hub, fetched over its HTTP interface by `huggingface_hub`.

Invariants: only the address that the operator set is asked, and only it is sent a secret. What is fetched is of one
commit, found first. Only files with the endings of models are fetched, so no pickle ever arrives. Each failure has a
name; no text repeats a secret.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from flexmarl.contracts.model_imports import CONFIG, ENDINGS, WEIGHTS, HubModel
from workers.models.errors import ModelRefused
from workers.models.fetching import check_room

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

T = TypeVar("T")

ASK_S = 10.0
"""Longest time until the hub says what a repository holds."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
QUIET = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "HF_HUB_DISABLE_XET": "1",  # its servers are others than the one that was allowed
    "HF_HUB_DOWNLOAD_TIMEOUT": "30",
    "HF_HUB_OFFLINE": "0",
}


def fetch_repository(
    source: HubModel, endpoint: str, token: str, memory: int, folder: Path, say: Callable[[int, int], None]
) -> str:
    """Fetch a repository's model into a folder and return its commit; `say` is told bytes that came, and all.

    `memory` is what the largest host has, in bytes, 0 where that is not known. Raises ModelRefused.
    """
    os.environ.update({**QUIET, "HF_HOME": str(folder / ".cache/home")})  # the library reads them when it is loaded
    from huggingface_hub import HfApi, constants

    constants.HF_HUB_OFFLINE = False
    api = HfApi(endpoint=endpoint, token=token or False)
    info = _asked(
        source, lambda: api.model_info(source.repository, revision=source.revision, files_metadata=True, timeout=ASK_S)
    )
    files = files_of(source, info)
    whole, came = sum(files.values()), 0
    check_room(folder, whole, memory)
    for path in folder.rglob("*"):  # of another commit, or not whole: the library begins such files anew
        if path.suffix == ".incomplete" or (path.parent == folder and path.is_file() and path.name not in files):
            path.unlink()
    for name, size in files.items():
        say(came, whole)
        _fetch(source, endpoint, token, str(info.sha), name, folder)
        came += size
    say(whole, whole)
    return str(info.sha)


def files_of(source: HubModel, info: "ModelInfo") -> dict[str, int]:
    """Return names and bytes of the files that are a model's. Raises ModelRefused for a repository without one."""
    listed = {file.rfilename: int(file.size or 0) for file in info.siblings or []}
    files = {name: size for name, size in sorted(listed.items()) if "/" not in name and name.endswith(ENDINGS)}
    if not any(name.endswith(WEIGHTS) for name in files):
        if any(name.endswith(PICKLES) for name in listed):
            text = "has only pickled weights; name one with *.safetensors, or convert it and import its folder"
            raise ModelRefused("pickle", f"{source.repository} {text}")
        raise ModelRefused("no_weights", f"{source.repository} has no *.safetensors; name a repository with some")
    if CONFIG not in files and "adapter_config.json" not in files:
        raise ModelRefused("no_config", f"{source.repository} has no {CONFIG}; name a repository of transformers")
    return files


def _fetch(source: HubModel, endpoint: str, token: str, commit: str, name: str, folder: Path) -> None:
    """Fetch a file, unless it is there; the library goes on where a transfer broke off."""
    from huggingface_hub import hf_hub_download

    def fetch() -> str:
        key = token or False
        return hf_hub_download(source.repository, name, revision=commit, local_dir=folder, endpoint=endpoint, token=key)

    _asked(source, fetch)


def _asked(source: HubModel, ask: Callable[[], T]) -> T:
    """Ask the hub. Raises ModelRefused with what its answer means."""
    from huggingface_hub import errors

    what, secret = source.repository, f"FLEXMARL_EXTERNAL_SECRET_{source.secret}" if source.secret else ""
    try:
        return ask()
    except errors.GatedRepoError:
        text = f"{what} is gated; accept its terms at the hub with an account, and name the secret with its token"
        raise ModelRefused("hub_gated", text) from None
    except errors.RevisionNotFoundError:
        text = f"{what} has no revision {source.revision}; name a branch, a tag or a commit of it"
        raise ModelRefused("hub_no_revision", text) from None
    except errors.HfHubHTTPError as error:
        raise _refused(error.response.status_code, what, secret) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.HTTPError) as error:  # type: ignore[attr-defined]
        cause = error.__cause__ or error
        text = f"the hub did not answer or broke off ({type(cause).__name__}); check FLEXMARL_HUB and the network"
        raise ModelRefused("hub_unreachable", f"{text}, and import it again") from None
    except OSError as error:
        if error.errno is None:  # the library's own: a file that came short, for one
            text = f"{what} could not be fetched whole ({type(error).__name__}); import it again"
            raise ModelRefused("hub_unreachable", text) from None
        raise ModelRefused("state_full", f"{os.strerror(error.errno)} while a file was written on this host") from None


def _refused(status: int, what: str, secret: str) -> ModelRefused:
    """Return what a status of the hub means. It answers 401 for what does not exist, too."""
    if status == 401 and secret:
        return ModelRefused("hub_refused", f"the hub refused the token in {secret}, or has no {what}")
    if status in {401, 404}:
        return ModelRefused("hub_not_found", f"the hub has no {what}, or shows it only with a token; name its secret")
    if status == 403:
        return ModelRefused("hub_refused", f"the hub does not let this token read {what}; use one that may")
    if status == 429:
        return ModelRefused("hub_unreachable", "the hub allows no more requests for now; import it again later")
    return ModelRefused("hub_unreachable", f"the hub answered with status {status}; import it again later")
