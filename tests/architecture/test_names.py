"""Names of types and modules: one public type per name, and the standard terms of the field."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("platform", "workers", "webui")
FRAMEWORK = frozenset({"Command", "Config", "Meta", "Options"})
"""Names that a framework or the plug-in protocol prescribes."""
NOT_TERMS = frozenset(
    {
        "told", "asked", "telling", "wish", "rest", "hand", "hands", "vigil", "shelf",
        "troupe", "misfortune", "laws", "foresight", "paces", "book", "home", "standing",
    }
)  # fmt: skip
HOMES = frozenset({"Home", "HomeLock", "platform/flexmarl/launcher/home.py", "webui/views/home.py"})
"""The folder FLEXMARL_HOME and the home page."""


def type_names(text: str, *, public: bool = True) -> list[str]:
    """Return the classes at the top level of a module, with private ones if asked for."""
    found = (node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    return [name for name in found if not (public and name.startswith("_"))]


def duplicates(texts: Mapping[str, str]) -> list[str]:
    """Return one line for each public type name that several modules define; `texts`: path -> source."""
    places: dict[str, list[str]] = {}
    for path, text in texts.items():
        for name in set(type_names(text)) - FRAMEWORK:
            places.setdefault(name, []).append(path)
    return [f"{name}: {', '.join(sorted(paths))}" for name, paths in sorted(places.items()) if len(paths) > 1]


def words(name: str) -> set[str]:
    """Return the words of a name in CamelCase or with underscores, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def private_words(path: str, text: str) -> Iterator[str]:
    """Yield the names of the module and its types that contain a word which is no term of the field."""
    if words(Path(path).stem) & NOT_TERMS and path not in HOMES:
        yield path
    for name in type_names(text, public=False):
        if words(name) & NOT_TERMS and name not in HOMES:
            yield f"{path}: {name}"


def sources() -> dict[str, str]:
    """Return path -> source of every module of the product."""
    files = (path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}


def test_a_public_type_has_a_name_of_its_own() -> None:
    assert duplicates(sources()) == []


def test_types_and_modules_have_standard_names() -> None:
    assert [found for path, text in sources().items() for found in private_words(path, text)] == []


def test_two_types_of_one_name_are_found() -> None:
    texts = {"a.py": "class Held: ...", "b.py": "class Held: ...\nclass _Own: ...", "c.py": "class _Own: ..."}
    framework = {"d.py": "class Command: ...", "e.py": "class Command: ..."}
    assert duplicates({**texts, **framework}) == ["Held: a.py, b.py"]


@pytest.mark.parametrize(
    ("path", "text"),
    [("a/vigil.py", ""), ("a.py", "class _Asked: ..."), ("a.py", "class TurnsAsked: ..."), ("a/step_laws.py", "")],
)
def test_a_private_word_is_found(path: str, text: str) -> None:
    assert list(private_words(path, text))


def test_terms_of_the_field_pass() -> None:
    assert not list(private_words("webui/views/home.py", "class Handover: ...\nclass Home: ..."))
