"""Which configurations and splits the files of a repository make: as its card says, or by how they are named.

Invariants: a file is in a split of a configuration at most once; no file is looked into but the card, and nothing of
the repository runs. Configurations that name a file of another format are refused whole: part of one is no dataset.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

import yaml

from flexmarl.contracts.hub_datasets import FORMATS, UnreadFile, format_of
from flexmarl.contracts.yaml_text import load

DEFAULT = "default"
CARD = "README.md"
LEGAL = ", ".join(FORMATS)
UPLOAD = "Save its rows as JSON lines or Parquet and upload that file."
CONVERTED = "refs/convert/parquet"
"""Revision at which hubs keep Parquet files that they made of a dataset."""
SPLITS = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip
"""Word in a file's name -> the split that it is of."""
_SHARD = re.compile(r"(?P<split>\w[\w.]*?)-\d{5}-of-\d{5}(-[0-9a-f]+)?\.\w+")
_FRONT = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|\Z)", re.DOTALL)
_SCRIPT = "it is a program that makes rows, and no code of a repository runs here"
_PACKED = (".zip", ".gz", ".zst", ".xz", ".bz2", ".tar", ".tgz", ".7z", ".rar")
_MEDIA = (
    ".jpg",
    ".jpeg",
    ".png",
    ".webp",
    ".gif",
    ".tif",
    ".tiff",
    ".bmp",
    ".wav",
    ".mp3",
    ".flac",
    ".ogg",
    ".mp4",
    ".webm",
)
_OTHER = (".arrow", ".txt", ".tsv", ".xlsx", ".pkl", ".pickle", ".h5", ".npy", ".npz", ".sqlite", ".db", ".xml")
_NOT_DATA = frozenset({"dataset_infos.json", "dataset_info.json", "state.json", "package.json"})


@dataclass(slots=True)
class Configuration:
    """Splits of a configuration: name -> paths, in order."""

    name: str
    splits: dict[str, list[str]] = field(default_factory=dict)
    refused: str = ""


def front_matter(card: str) -> Mapping[str, Any]:
    """Return what stands at the head of a card; nothing where there is none, or it cannot be read."""
    found = _FRONT.match(card)
    try:
        value = load(found.group(1)) if found else None
    except yaml.YAMLError:
        return {}
    return value if isinstance(value, Mapping) else {}


def licence_of(head: Mapping[str, Any]) -> str:
    """Return the licence that a card names; several are joined."""
    given = head.get("license", "")
    names = given if isinstance(given, list) else [given]
    return ", ".join(name for name in names if isinstance(name, str))[:200]


def configurations(paths: Iterable[str], head: Mapping[str, Any]) -> list[Configuration]:
    """Return what a repository with these files and this head of its card has, in the order of the card or by name."""
    there = sorted(path for path in paths if not _hidden(path))
    given = head.get("configs")
    named = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    if named:
        return [_as_named(one, there) for one in named]
    return _by_files(there)


def left_out(paths: Iterable[str], used: Iterable[str]) -> list[UnreadFile]:
    """Return the files that look like data and are in no configuration, with why."""
    taken = set(used)
    found = [(path, _why_not(path)) for path in sorted(paths) if path not in taken and not _hidden(path)]
    return [UnreadFile(path=path[:300], why=why) for path, why in found if why]


def nothing_here(repository: str, paths: Sequence[str]) -> str:
    """Say why a repository has nothing to import, and what to do instead."""
    out = left_out(paths, ())
    seen = "; ".join(f"{one.path}: {one.why}" for one in out[:3]) or "it has no files of rows"
    more = f", and {len(out) - 3} more" if len(out) > 3 else ""
    return (
        f"{repository} has none of {LEGAL} ({seen}{more}). Many hubs keep a Parquet copy: try revision {CONVERTED}. "
        "Otherwise save the rows as JSON lines or Parquet and upload that file."
    )


def _hidden(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return any(part.startswith((".", "/")) for part in parts) or parts[-1] in _NOT_DATA


def _why_not(path: str) -> str:
    """Say why a file is not read; empty for what is no data."""
    name = path.lower()
    if name.endswith(".py"):
        return f"{_SCRIPT}. {UPLOAD}"
    if name.endswith(_PACKED):
        return f"packed files are not opened. Unpack it: {UPLOAD}"
    if name.endswith(_MEDIA):
        return "agents here read text; pictures, sound and films are not imported"
    if name.endswith(_OTHER):
        return f"legal: {LEGAL}. {UPLOAD}"
    return ""


# As the card says ----------------------------------------------------------------------------------------------------


def _as_named(given: Mapping[str, Any], there: Sequence[str]) -> Configuration:
    made = Configuration(str(given.get("config_name", DEFAULT))[:200])
    folder = str(given.get("data_dir") or "").strip("./")
    below = [path for path in there if not folder or path.startswith(f"{folder}/")]
    if "data_files" not in given:
        found = _by_files([path for path in below if format_of(path)])
        made.splits = _merged(found)
        if not made.splits:
            made.refused = f"its folder {folder or '.'} has none of {LEGAL}. {UPLOAD}"
        return made
    for split, patterns in _patterns(given["data_files"]):
        paths = [path for pattern in patterns for path in _matching(pattern, folder, there)]
        known = made.splits.setdefault(split[:200], [])
        known += [path for path in dict.fromkeys(paths) if path not in known]
    _check(made)
    return made


def _check(made: Configuration) -> None:
    for split, paths in made.splits.items():
        if not paths:
            made.refused = f"its card names files for {split} that the repository does not have. {UPLOAD}"
            return
        for path in paths:
            if format_of(path) is None:
                made.refused = f"{path} is none of {LEGAL}: {_why_not(path) or UPLOAD}"
                return
    if not made.splits:
        made.refused = f"its card names no files for it. {UPLOAD}"


def _patterns(given: object) -> list[tuple[str, list[str]]]:
    """Return splits with their patterns: a text, a list of texts, a mapping, or a list of {split, path}."""
    if isinstance(given, Mapping):
        return [(str(split), _texts(paths)) for split, paths in given.items()]
    if isinstance(given, list) and any(isinstance(one, Mapping) for one in given):
        named = [one for one in given if isinstance(one, Mapping)]
        return [(str(one.get("split", "train")), _texts(one.get("path"))) for one in named]
    return [("train", _texts(given))]


def _texts(given: object) -> list[str]:
    return [one for one in (given if isinstance(given, list) else [given]) if isinstance(one, str)]


def _matching(pattern: str, folder: str, there: Sequence[str]) -> list[str]:
    """Return the paths that a pattern of a card names: *, ? and [a-z] within a folder, ** through any folders.

    The time is proportional to paths and pattern, whatever stands in it.
    """
    whole = "/".join(part for part in (folder, pattern[:500].removeprefix("./")) if part)
    parts = whole.split("/")
    return [path for path in there if path == whole or _matches(parts, path.split("/"))]


def _matches(parts: Sequence[str], names: Sequence[str]) -> bool:
    at = _with_skips({0}, parts)  # places in the pattern that what was read of the path may have reached
    for name in names:
        stays = {place for place in at if place < len(parts) and parts[place] == "**"}
        steps = {place + 1 for place in at - stays if place < len(parts) and fnmatchcase(name, parts[place])}
        at = _with_skips(stays | steps, parts)
    return len(parts) in at


def _with_skips(places: set[int], parts: Sequence[str]) -> set[int]:
    """Add the places behind each `**`, which stands for no folder as well."""
    found = set(places)
    for place in range(len(parts)):
        if place in found and parts[place] == "**":
            found.add(place + 1)
    return found


# By the names of files -----------------------------------------------------------------------------------------------


def _by_files(there: Sequence[str]) -> list[Configuration]:
    """Return configurations by folders and splits by names: `main/train-00000-of-00002.parquet`, `test.csv`."""
    made: dict[str, Configuration] = {}
    for path in there:
        if format_of(path) is None:
            continue
        name, split = _place(PurePosixPath(path))
        made.setdefault(name, Configuration(name)).splits.setdefault(split, []).append(path)
    return [made[name] for name in sorted(made)]


def _place(path: PurePosixPath) -> tuple[str, str]:
    """Return configuration and split of a file."""
    folders = list(path.parts[:-1])
    split = _split_of(path.name)
    if not split and folders and (of_folder := SPLITS.get(folders[-1].lower())):
        split = of_folder
        folders.pop()
    if folders and folders[-1] == "data":
        folders.pop()
    elif folders and folders[0] == "data":
        folders.pop(0)
    return "/".join(folders) or DEFAULT, split or "train"


def _split_of(name: str) -> str:
    """Return the split that a file's name says, empty where it says none."""
    if shard := _SHARD.fullmatch(name):
        return shard["split"]
    words = re.split(r"[^a-z]+", name.rpartition(".")[0].lower())
    return next((SPLITS[word] for word in words if word in SPLITS), "")


def _merged(found: Sequence[Configuration]) -> dict[str, list[str]]:
    splits: dict[str, list[str]] = {}
    for one in found:
        for split, paths in one.splits.items():
            splits.setdefault(split, []).extend(paths)
    return splits
