"""Takes absolute paths of a host out of texts that people of other projects may read.

Invariant: of a path below a folder of this host's file system only the last name stays. Addresses (`http://host/a/b`)
and routes (`/api/v1/runs`) are no paths of the file system and stay as they are.
"""

import os
import re
from functools import cache

SHORT = "..."
"""Stands for the folders that were taken out."""


def without_paths(text: str) -> str:
    """Return a text in which every absolute path of this host is its last name."""
    return _pattern().sub(rf"{SHORT}/\g<last>", text)


@cache
def _pattern() -> re.Pattern[str]:
    top = "|".join(re.escape(name) for name in sorted(os.listdir("/"), key=len, reverse=True))
    return re.compile(rf"(?<![\w.])/(?:{top})(?:/[^/\s'\"`<>|,;:()\[\]{{}}]+)*/(?P<last>[^/\s'\"`<>|,;:()\[\]{{}}]+)/?")
