"""Takes a model into the state plane: `python -m workers.models.importing <home> <source>`, with the source as JSON.

A process of its own, since it holds all weights for a moment and its node none. Each line it writes is one JSON object:
`{"now": ...}` while it goes on, then either `{"digest": ..., "facts": ...}` or `{"code": ..., "detail": ...}`.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
from pydantic import TypeAdapter

from flexmarl.contracts.model_imports import HubModel, ImportSource, UploadModel
from flexmarl.contracts.specification.team import FolderModel
from flexmarl.store.data.model_roots import ModelRoots
from workers.models.errors import ModelRefused, UnsupportedModel
from workers.models.fetching import fetching
from workers.models.hub import fetch_repository
from workers.models.inspecting import inspect
from workers.models.opening import allow
from workers.models.places import folder_of
from workers.models.stored import put_model
from workers.models.uploads import fetch_upload
from workers.transfer import StateFull

NICENESS = 5
TOKEN = "FLEXMARL_IMPORT_TOKEN"
"""Variable with the bearer token for where the model is fetched from."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where models are fetched from that lie on no host yet."""

    hub: str = ""
    """Base URL of the model hub; empty: none is allowed."""
    control: str = ""
    """Base URL of the control plane, which keeps uploads."""
    token: str = ""
    memory: int = 0
    """Bytes of memory of the largest host; 0 where that is not known."""


def import_model(home: str, source: ImportSource, elsewhere: Elsewhere) -> None:
    """Import a model, saying how far it is. Raises UnsupportedModel or StateFull."""
    _say({"now": "opening"})
    with _opened(source, elsewhere) as (path, found):
        _say({"now": "checking"})
        facts = inspect(path)
        if 0 < elsewhere.memory < facts.bytes:
            most = f"the largest host has {elsewhere.memory / 1e9:.2f} GB of memory"
            raise ModelRefused("too_large", f"its weights take {facts.bytes / 1e9:.2f} GB; {most}")
        _say({"now": "storing"})
        stored = put_model(home, path)
    _say({"digest": stored.digest, "facts": {**msgspec.to_builtins(facts), **found}})


@contextmanager
def _opened(source: ImportSource, elsewhere: Elsewhere) -> Iterator[tuple[str, dict[str, str]]]:
    """Give the folder of a source, fetched first where it lies elsewhere, and what became known of it by that."""
    if isinstance(source, HubModel):
        with fetching(f"hub {elsewhere.hub} {source.repository} {source.revision}") as folder:
            commit = fetch_repository(source, elsewhere.hub, elsewhere.token, elsewhere.memory, folder, _fetched)
            yield str(folder), {"commit": commit}
    elif isinstance(source, UploadModel):
        with fetching(f"upload {source.id}") as folder:
            fetch_upload(source, elsewhere.control, elsewhere.token, elsewhere.memory, folder, _fetched)
            yield str(folder), {}
    else:
        yield folder_of(source), {}


def _fetched(came: int, whole: int) -> None:
    _say({"now": f"fetching {came * 100 // whole if whole else 100} %"})


def _say(line: dict[str, object]) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home")
    parser.add_argument("source")
    parser.add_argument("--model-root", action="append", default=[], help="folder below which a model may lie")
    parser.add_argument("--checkpoint", default="", help="folder of this product's own that is the model")
    parser.add_argument("--memory", type=int, default=0, help="bytes of memory of the largest host")
    parser.add_argument("--hub", default="", help="base URL of the model hub")
    parser.add_argument("--control", default="", help="base URL of the control plane")
    asked = parser.parse_args()
    os.nice(NICENESS)
    own = ModelRoots((asked.checkpoint,)) if asked.checkpoint else None
    allow(own or ModelRoots(tuple(asked.model_root), (asked.home,)), asked.home)
    source: ImportSource = TypeAdapter(ImportSource).validate_json(asked.source)
    try:
        import_model(asked.home, source, Elsewhere(asked.hub, asked.control, os.environ.get(TOKEN, ""), asked.memory))
    except ModelRefused as error:
        _say({"code": error.code, "detail": str(error)})
    except UnsupportedModel as error:
        _say({"code": "unreadable_folder" if isinstance(source, FolderModel) else "not_made", "detail": str(error)})
    except StateFull as error:
        _say({"code": StateFull.code, "detail": error.detail})
    except MemoryError:
        _say({"code": "out_of_memory", "detail": "the host has too little memory to hold the model's weights"})


if __name__ == "__main__":
    main()
