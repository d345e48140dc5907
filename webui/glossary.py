"""The words of the product, read from the one place that defines them: `docs/glossary.md`."""

from functools import cache
from typing import NamedTuple

from django.conf import settings


class Word(NamedTuple):
    """A term, what it means, and what it must not be used for."""

    term: str
    meaning: str
    never: str


@cache
def words() -> tuple[Word, ...]:
    """All words in the order of the document."""
    lines = (settings.ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return tuple(Word(*(plain(cell) for cell in row)) for row in rows[2:] if len(row) == len(Word._fields))


def plain(text: str) -> str:
    """Drop the marks of Markdown."""
    return text.replace("`", "").replace("*", "").strip()
