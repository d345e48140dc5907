"""Folders as tar files."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path


def packed(folder: Path) -> bytes:
    """Pack a folder as the documentation says: tar -cf rows.tar -C FOLDER ."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        archive.add(folder, ".")
    return body.getvalue()


def parts(export: bytes) -> Iterator[tuple[str, bytes]]:
    """The files of a packed export."""
    with tarfile.open(fileobj=io.BytesIO(export)) as archive:
        for member in archive:
            body = archive.extractfile(member)
            if body is not None:
                yield member.name.removeprefix("./"), body.read()


def repacked(files: dict[str, bytes]) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        for name, content in files.items():
            head = tarfile.TarInfo(name)
            head.size = len(content)
            archive.addfile(head, io.BytesIO(content))
    return body.getvalue()
