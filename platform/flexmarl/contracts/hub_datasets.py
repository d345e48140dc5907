"""Datasets of a hub: what a repository has, what of it is fetched, and what a version says of where it came from.

What is fetched is one file: a tar archive of the hub's files as they are, after a first member `MANIFEST` that names
repository, commit, configuration, and of each file its split and digest. So its digest stands for all of that.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.hub_models import HubRepository
from flexmarl.contracts.problems import broken_at

FORMATS: Mapping[str, str] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet",
}  # fmt: skip
"""Ending of a file's name -> format of its rows."""
ARCHIVE = "tar"
"""Format of what is fetched."""
MANIFEST = "origin.json"
MOST_FILES = 500
"""Of what is fetched at a time."""
MOST_SHOWN = 50
"""Configurations, splits of one, and files left out that an answer lists."""
LIMIT_SETTING = "FLEXMARL_MOST_DATASET_MIB"


def format_of(name: str) -> str | None:
    """Return the format of a file by its name, None for one that no rows are read of."""
    return next((kind for ending, kind in FORMATS.items() if name.lower().endswith(ending)), None)


class HubDataset(HubRepository):
    """A dataset of the hub. Without a configuration, what there is is listed; with one, its splits are fetched."""

    configuration: str = Field(default="", max_length=200, examples=["main"])
    splits: tuple[str, ...] = Field(default=(), max_length=MOST_SHOWN, examples=[["train", "test"]])
    """Of the configuration, each once."""

    @model_validator(mode="after")
    def _both_or_neither(self) -> "HubDataset":
        if bool(self.configuration) != bool(self.splits):
            rule = "name a configuration and at least one of its splits, or neither to list what there is"
            raise broken_at(["splits" if self.configuration else "configuration"], rule)
        if len(set(self.splits)) < len(self.splits):
            raise broken_at(["splits"], "name each split once")
        return self


class FoundSplit(Strict):
    name: str
    files: int
    bytes: int


class FoundConfiguration(Strict):
    name: str
    splits: tuple[FoundSplit, ...] = ()
    refused: str = ""
    """Why it cannot be fetched, and what to do instead; empty: it can."""


class UnreadFile(Strict):
    path: str
    why: str


class HubListing(Strict):
    """What a repository has at one commit."""

    commit: str
    licence: str = ""
    """As its card says; empty where it does not."""
    configurations: tuple[FoundConfiguration, ...] = ()
    left_out: tuple[UnreadFile, ...] = ()


class OriginFile(Strict):
    """A file of the hub, as it was fetched."""

    path: str
    split: str
    format: Literal["jsonl", "csv", "parquet"]
    bytes: int
    digest: str
    """SHA-256."""


class DatasetOrigin(Strict):
    """Where an archive came from; its files are its further members, in this order."""

    repository: str
    revision: str
    commit: str
    configuration: str
    licence: str = ""
    files: tuple[OriginFile, ...]
