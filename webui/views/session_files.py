"""What a command made of its workspace, in words of pages. Pure: values in, values out."""

from collections.abc import Mapping
from typing import Any

from webui.formats import bytes_text

CHANGES = {"added": ("plus", "ok"), "changed": ("pencil", ""), "removed": ("trash", "muted")}
"""How a file changed -> icon and tone."""
_SIDES = {"+": "added", "-": "removed"}


def files(changes: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the changed files and their differences, line by line; None where no workspace was kept."""
    if changes is None:
        return None
    rows = [{**one, "look": CHANGES[one["change"]], "sizes": _sizes(one)} for one in changes["files"]]
    lines = [{"text": line, "side": _side(line)} for line in changes["diff"].splitlines()]
    return {**changes, "files": rows, "lines": lines, "unnamed": changes["count"] - len(rows)}


def _sizes(file: Mapping[str, Any]) -> str:
    before, size = file["before"], file["size"]
    if before is None or size is None or before == size:
        return bytes_text(before if size is None else size)
    return f"{bytes_text(before)} before, {bytes_text(size)} now"


def _side(line: str) -> str:
    """Return what a line of a unified difference tells of: added, removed; empty: neither."""
    return "" if line.startswith(("+++", "---")) else _SIDES.get(line[:1], "")
