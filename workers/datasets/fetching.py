"""Fetches of a hub's dataset: `python -m workers.datasets.fetching <source> <hub> <folder> <most bytes>`.

The source is JSON; the token is a line of its input. Each line it writes is one JSON object: `{"now", "done", "bytes"}`
while it goes on, then `{"found": ...}`, with `archive`, its `digest` and `bytes` where files were asked for, or
`{"code", "detail"}`.
"""

import argparse
import hashlib
import os
import sys
from pathlib import Path

import msgspec

from flexmarl.contracts.hub_datasets import HubDataset
from workers.datasets.hub import BLOCK, chosen, fetch, listed, look
from workers.errors import ImportRefused

NICENESS = 5


def brought(source: HubDataset, hub: str, token: str, folder: Path, most_bytes: int) -> dict[str, object]:
    """List a repository or fetch splits of it, saying how far it is; return the last line. Raises ImportRefused."""
    say({"now": "looking"})
    repository = look(source, hub, token, folder)
    if not source.configuration:
        return {"found": listed(repository).model_dump(mode="json")}
    files = chosen(repository, most_bytes)
    archive, origin = fetch(
        repository, files, folder, lambda here, of: say({"now": "fetching", "done": here, "bytes": of})
    )
    digest = hashlib.sha256()
    with archive.open("rb") as body:
        while block := body.read(BLOCK):
            digest.update(block)
    size = archive.stat().st_size
    return {
        "found": origin.model_dump(mode="json"),
        "archive": str(archive),
        "digest": digest.hexdigest(),
        "bytes": size,
    }


def say(line: dict[str, object]) -> None:
    """Write a line and let it go."""
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("source", "hub", "folder"):
        parser.add_argument(name)
    parser.add_argument("most_bytes", type=int)
    asked = parser.parse_args()
    os.nice(NICENESS)
    source, token = HubDataset.model_validate_json(asked.source), sys.stdin.readline().strip()
    try:
        say(brought(source, asked.hub, token, Path(asked.folder), asked.most_bytes))
    except ImportRefused as error:
        say({"code": error.code, "detail": str(error)})


if __name__ == "__main__":
    main()
