"""Datasets of a test hub, and a node's part of a fetch without a process."""

import io
import json
from pathlib import Path
from typing import Any

from flexmarl.contracts.hub_datasets import HubDataset
from flexmarl.store.control import dataset_fetches
from workers.datasets.fetching import brought
from workers.errors import ImportRefused

CARD = """---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - {split: test, path: main/test-*}
- config_name: pictures
  data_files: pictures/*.png
---
# Grade school
"""
TRAIN, TEST = ("main/train-00000-of-00002.jsonl", "main/train-00001-of-00002.jsonl"), "main/test-00000-of-00001.parquet"
HUB = "http://hub.test"


def lines(first: int, count: int) -> str:
    """Return JSON lines of sums, with answers as grade-school sets have them."""
    rows = ({"question": f"What is {n}+1?", "answer": f"#### {n + 1}"} for n in range(first, first + count))
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def parquet(first: int, count: int) -> bytes:
    """Return the same rows as Parquet."""
    import pyarrow
    from pyarrow import parquet as form

    made = io.BytesIO()
    form.write_table(pyarrow.Table.from_pylist([json.loads(one) for one in lines(first, count).splitlines()]), made)
    return made.getvalue()


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Write files below a folder and return it."""
    for name, body in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body.encode() if isinstance(body, str) else body)
    return folder


def grade_school(folder: Path) -> Path:
    """Write a repository of 20 rows to train on, in two files, and 5 to test on, with what is no data beside them."""
    return write(
        folder,
        {
            "README.md": CARD, TRAIN[0]: lines(0, 10), TRAIN[1]: lines(10, 10), TEST: parquet(100, 5),
            "pictures/one.png": "x", "school.py": "raise SystemExit",
        },
    )  # fmt: skip


def fetch_as_node(conn: Any, hub: str, token: str, folder: Path, part_bytes: int = 4096) -> None:
    """Do what a node does with the fetch that waits longest."""
    taken = dataset_fetches.take(conn, "box", 15.0)
    assert taken is not None
    folder.mkdir(exist_ok=True)
    try:
        last = brought(HubDataset.model_validate(taken.source), hub, token, folder, taken.most_bytes)
    except ImportRefused as error:
        dataset_fetches.failed(conn, taken, error.code, str(error))
        return
    body = Path(str(last["archive"])).read_bytes() if "archive" in last else b""
    for place, at in enumerate(range(0, len(body), part_bytes)):
        assert dataset_fetches.put_part(conn, taken, place, body[at : at + part_bytes], 15.0)
    assert dataset_fetches.done(conn, taken, last["found"], str(last.get("digest", "")), len(body))
