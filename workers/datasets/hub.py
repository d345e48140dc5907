"""Datasets of a hub: what a repository has at one commit, and files of it in one archive.

Invariants. Only the hub that the operator named is asked, without a token unless a secret was named. What is too large
is refused before any of it is fetched. Each file has the size and the digest that the hub said it has at that commit;
the archive of the same files of the same commit has the same bytes wherever it is made. Each failure has a code.
"""

import hashlib
import io
import shutil
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.hf_api import RepoSibling

from flexmarl.contracts.hub_datasets import (
    LIMIT_SETTING,
    MANIFEST,
    MOST_FILES,
    MOST_SHOWN,
    DatasetOrigin,
    FoundConfiguration,
    FoundSplit,
    HubDataset,
    HubListing,
    OriginFile,
    format_of,
)
from flexmarl.contracts.yaml_text import is_storable
from workers.datasets.layout import (
    CARD,
    Configuration,
    configurations,
    front_matter,
    left_out,
    licence_of,
    nothing_here,
)
from workers.errors import ImportRefused
from workers.hub_refusals import ASK_S, named

MOST_CARD = 2**20
BLOCK = 2**20
Progress = Callable[[int, int], None]
"""Takes the bytes that are here and of how many."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of a hub at one commit."""

    source: HubDataset
    hub: str
    token: str
    commit: str
    files: Mapping[str, RepoSibling]
    licence: str
    configurations: Sequence[Configuration]


def look(source: HubDataset, hub: str, token: str, folder: Path) -> Repository:
    """Find what a repository has; its card is read in `folder`. Raises ImportRefused."""
    with named(source, "dataset"):
        found = HfApi(endpoint=hub, token=token or False).dataset_info(
            source.repository, revision=source.revision, files_metadata=True, timeout=ASK_S
        )
        files = {file.rfilename: file for file in found.siblings or [] if is_storable(file.rfilename)}
        commit, card = str(found.sha), ""
        if CARD in files and (files[CARD].size or 0) <= MOST_CARD:
            path = _download(source.repository, CARD, commit, (hub, token), folder)
            card = path.read_bytes().decode("utf-8", "replace")
    head = front_matter(card)
    made = configurations(files, head)
    if not made:
        raise ImportRefused("no_data", nothing_here(source.repository, list(files)))
    return Repository(source, hub, token, commit, files, licence_of(head), made)


def listed(repository: Repository) -> HubListing:
    """Return what there is to choose from."""
    used = [path for one in repository.configurations for paths in one.splits.values() for path in paths]
    return HubListing(
        commit=repository.commit,
        licence=repository.licence,
        configurations=tuple(_found(repository, one) for one in repository.configurations[:MOST_SHOWN]),
        left_out=tuple(left_out(repository.files, used)[:MOST_SHOWN]),
    )


def _found(repository: Repository, one: Configuration) -> FoundConfiguration:
    sizes = [
        FoundSplit(name=name, files=len(paths), bytes=sum(_size(repository, path) for path in paths))
        for name, paths in one.splits.items()
    ]
    return FoundConfiguration(name=one.name, splits=tuple(sizes[:MOST_SHOWN]), refused=one.refused)


def chosen(repository: Repository, most_bytes: int) -> list[tuple[str, str]]:
    """Return split and path of the files that were asked for, in order. Raises ImportRefused."""
    asked = repository.source
    known = {one.name: one for one in repository.configurations}
    if (found := known.get(asked.configuration)) is None:
        names = ", ".join(list(known)[:MOST_SHOWN])
        raise ImportRefused(
            "no_configuration", f"{asked.repository} has no configuration {asked.configuration}: {names}"
        )
    if found.refused:
        raise ImportRefused("unreadable_files", f"{asked.configuration} cannot be imported: {found.refused}")
    if missing := [split for split in asked.splits if split not in found.splits]:
        names = ", ".join(list(found.splits)[:MOST_SHOWN])
        raise ImportRefused("no_split", f"{asked.configuration} has no split {missing[0]}: {names}")
    files = [(split, path) for split in asked.splits for path in found.splits[split]]
    size = sum(_size(repository, path) for _, path in files)
    if size > most_bytes or len(files) > MOST_FILES:
        text = (
            f"the splits have {size / 2**20:.1f} MiB in {len(files)} files; at most {most_bytes / 2**20:g} MiB "
            f"({LIMIT_SETTING}) in {MOST_FILES} files are imported. Choose fewer splits."
        )
        raise ImportRefused("too_large", text)
    return files


def fetch(
    repository: Repository, files: Sequence[tuple[str, str]], folder: Path, progress: Progress
) -> tuple[Path, DatasetOrigin]:
    """Fetch files into an archive in `folder`; return it, and what it says of itself. Raises ImportRefused."""
    total = sum(_size(repository, path) for _, path in files)
    _check_disk(folder, total)
    source, here, members = repository.source, 0, list[tuple[OriginFile, Path]]()
    with named(source, "dataset"):
        for split, name in files:
            progress(here, total)
            place = (repository.hub, repository.token)
            path = _download(source.repository, name, repository.commit, place, folder / "files")
            digest = _checked(repository.files[name], path)
            size = path.stat().st_size
            kind = format_of(name)
            about = OriginFile.model_validate(
                {"path": name, "split": split, "format": kind, "bytes": size, "digest": digest}
            )
            members.append((about, path))
            here += size
        progress(here, total)
        return _packed(repository, members, folder / "archive.tar")


def _packed(
    repository: Repository, members: Sequence[tuple[OriginFile, Path]], archive: Path
) -> tuple[Path, DatasetOrigin]:
    """Write the archive. Its bytes depend on nothing but its members: no names of users, no times."""
    source = repository.source
    origin = DatasetOrigin(
        repository=source.repository, revision=source.revision, commit=repository.commit,
        configuration=source.configuration, licence=repository.licence, files=tuple(one for one, _ in members),
    )  # fmt: skip
    said = origin.model_dump_json().encode()
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as packed:
        head = tarfile.TarInfo(MANIFEST)
        head.size = len(said)
        packed.addfile(head, io.BytesIO(said))
        for about, path in members:
            member = tarfile.TarInfo(about.path)
            member.size = about.bytes
            with path.open("rb") as body:
                packed.addfile(member, body)
    return archive, origin


def _download(repository: str, name: str, commit: str, place: tuple[str, str], folder: Path) -> Path:
    hub, token = place
    path = hf_hub_download(
        repository, name, repo_type="dataset", revision=commit, endpoint=hub, token=token or False, local_dir=folder,
        etag_timeout=ASK_S,
    )  # fmt: skip
    return Path(str(path))


def _checked(file: RepoSibling, path: Path) -> str:
    """Return the SHA-256 of a file that is what the hub said it is. Raises ImportRefused."""
    size = path.stat().st_size
    sha, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as body:
        while block := body.read(BLOCK):
            sha.update(block)
            blob.update(block)
    if file.lfs is not None:
        expected, found = file.lfs.sha256, sha.hexdigest()
    else:
        expected, found = file.blob_id or blob.hexdigest(), blob.hexdigest()
    if (file.size is not None and file.size != size) or expected != found:
        text = (
            f"{file.rfilename} has {size} bytes and digest {found[:12]}, the hub said {file.size} and {expected[:12]}: "
            "it was changed or damaged on the way. Try again."
        )
        raise ImportRefused("hub_mismatch", text)
    return sha.hexdigest()


def _check_disk(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < 2 * size:
        text = f"the files take {size / 1e6:.1f} MB, twice while they are fetched; {free / 1e6:.1f} MB are free"
        raise ImportRefused("state_full", text)


def _size(repository: Repository, path: str) -> int:
    return repository.files[path].size or 0
