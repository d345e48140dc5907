"""The documents are true where a machine can tell: links lead somewhere, named commands, modules and files exist."""

import importlib.util
import re
import textwrap
from pathlib import Path

import pytest

from flexmarl.contracts import yaml_text

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = {path.stem for path in ROOT.glob("platform/flexmarl/controlplane/*/management/commands/*.py")}
DJANGO_COMMANDS = {"shell", "changepassword", "collectstatic", "check", "migrate", "createsuperuser"}

RECIPE_STEP = re.compile(r"^\*\*Step \d+\.\*\*.*?^```\w+\n.*?^```$", re.DOTALL | re.MULTILINE)
"""Of CONTRIBUTING.md: names files that following it makes, and is followed by a test of its own."""


def names() -> list[str]:
    return [str(path.relative_to(ROOT)) for path in DOCUMENTS]


def missing_links(document: Path, text: str) -> list[str]:
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    paths = {target for target in targets if target and not re.match(r"[a-z]+:", target)}
    return sorted(target for target in paths if not (document.parent / target).exists())


def unknown_commands(text: str) -> list[str]:
    return sorted(set(re.findall(r"manage\.py ([a-z_]+)", text)) - COMMANDS - DJANGO_COMMANDS)


def unknown_modules(text: str) -> list[str]:
    found = set(re.findall(r"python -m ([\w.]+)", text)) - {"pip", "pytest", "venv"}
    return sorted(name for name in found if importlib.util.find_spec(name) is None)


def unknown_paths(text: str) -> list[str]:
    text = RECIPE_STEP.sub("", text)
    found = set(re.findall(r"(?<![\w./-])((?:tests|workers|platform|webui|scripts)/[\w./-]*\w)", text))
    return sorted(path for path in found if not (ROOT / path).exists())


def short_in_ci() -> set[str]:
    """Return the files of tests that have a short form."""
    files = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    return {
        name
        for name, text in files.items()
        if re.search(r"\bform\(\s*short=|pytest\.mark\.full\b|\bif not FULL\b", text)
    }


def test_every_short_form_is_listed_with_its_full_one() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Slow proofs")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(tests/[\w./]+)` \|", table, re.MULTILINE)) == short_in_ci()


def test_lines_that_connect_frameworks_are_lines_of_their_examples() -> None:
    section = (ROOT / "docs/gateway.md").read_text().partition("## Connect")[2].partition("\n## ")[0]
    found = re.findall(r"`(with_\w+\.py)`.*?```\w+\n(.*?)```", section, re.DOTALL)
    examples = ROOT / "examples/programs"
    assert {name for name, _ in found} == {path.name for path in examples.glob("with_*.py")}
    for name, lines in found:
        known = {line.strip() for line in (examples / name).read_text().splitlines()}
        assert [line for line in lines.splitlines() if line.strip() not in known] == [], name


@pytest.mark.parametrize("name", names())
def test_links_lead_somewhere(name: str) -> None:
    assert missing_links(ROOT / name, (ROOT / name).read_text()) == []


@pytest.mark.parametrize("name", names())
def test_named_commands_modules_and_files_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    assert unknown_commands(text) + unknown_modules(text) + unknown_paths(text) == []


@pytest.mark.parametrize("name", names())
def test_yaml_of_pages_is_yaml_that_is_read(name: str) -> None:
    for block in re.findall(r"^ *```yaml\n(.*?)^ *```$", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE):
        yaml_text.load(textwrap.dedent(block))


def test_what_does_not_exist_is_found() -> None:
    text = "[a](nowhere.md) `manage.py dance` python -m workers.nobody, see tests/none.py"
    text += "\n\n**Step 1.** New file `tests/made.py`.\n\n```python\nuse(tests/made.py)\n```\n"
    assert missing_links(ROOT / "README.md", text) == ["nowhere.md"]
    assert unknown_commands(text) == ["dance"]
    assert unknown_modules(text) == ["workers.nobody"]
    assert unknown_paths(text) == ["tests/none.py"]
