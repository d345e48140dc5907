"""Takes a model into the state plane: `python -m workers.models.importing <home> <source>`, with the source as JSON.

A process of its own, since it holds all weights for a moment and its node none. The token for what it fetches from is
a line of its input. Each line it writes is one JSON object:
`{"now": ...}` while it goes on, then either `{"digest": ..., "facts": ...}` or `{"code": ..., "detail": ...}`.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from pydantic import Field, TypeAdapter

from flexmarl.contracts.hub_models import HubModel
from flexmarl.contracts.specification.team import FolderModel, PackageModel
from flexmarl.contracts.uploaded_models import UploadModel
from flexmarl.store.data.model_roots import ModelRoots
from workers.models.errors import ModelRefused, UnsupportedModel
from workers.models.hub import fetch
from workers.models.inspecting import inspect
from workers.models.opening import allow
from workers.models.places import folder_of
from workers.models.room import check_memory
from workers.models.stored import put_model
from workers.models.uploads import fetch_upload
from workers.transfer import StateFull

Source = Annotated[FolderModel | PackageModel | HubModel | UploadModel, Field(discriminator="type")]
NICENESS = 5


def import_model(home: str, source: FolderModel | PackageModel, memory: int, commit: str = "") -> None:
    """Import a model, saying how far it is; `memory` is what the largest host has, 0 where that is not known.

    Raises UnsupportedModel or StateFull.
    """
    _say({"now": "opening"})
    path = folder_of(source)
    _say({"now": "checking"})
    facts = msgspec.structs.replace(inspect(path), commit=commit)
    check_memory(facts.bytes, memory)
    _say({"now": "storing"})
    stored = put_model(home, path)
    _say({"digest": stored.digest, "facts": facts})


def _say(line: dict[str, object]) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home")
    parser.add_argument("source")
    parser.add_argument("--model-root", action="append", default=[], help="folder below which a model may lie")
    parser.add_argument("--checkpoint", default="", help="folder of this product's own that is the model")
    parser.add_argument("--server", default="", help="address of the hub, or of the control plane for an upload")
    parser.add_argument("--fetched", default="", help="folder for what is fetched from there")
    parser.add_argument("--memory", type=int, default=0, help="bytes of memory of the largest host")
    asked = parser.parse_args()
    os.nice(NICENESS)
    own = ModelRoots((asked.checkpoint or asked.fetched,)) if asked.checkpoint or asked.fetched else None
    allow(own or ModelRoots(tuple(asked.model_root), (asked.home,)), asked.home)
    source: FolderModel | PackageModel | HubModel | UploadModel = TypeAdapter(Source).validate_json(asked.source)
    commit = ""
    try:
        if isinstance(source, HubModel | UploadModel):
            _say({"now": "fetching"})
            token, folder = sys.stdin.readline().strip(), Path(asked.fetched)
            if isinstance(source, HubModel):
                commit = fetch(source, asked.server, token, folder, asked.memory)
            else:
                fetch_upload(source, asked.server, token, folder, asked.memory)
            source = FolderModel(path=str(folder / "model"))
        import_model(asked.home, source, asked.memory, commit)
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
