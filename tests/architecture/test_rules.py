"""The house rules hold for every file, and each checker is seen to fail on a file that breaks its rule."""

import ast
import re
import textwrap
from pathlib import Path

import pytest

from tests.architecture import checks

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("platform/flexmarl", "webui", "workers", "manage.py")
ENVIRONMENT_READERS = {
    "manage.py",
    "platform/flexmarl/controlplane/settings/env.py",
    "platform/flexmarl/controlplane/asgi.py",
    "platform/flexmarl/controlplane/inventory/providers/ray_bridge.py",
    "workers/settings.py",
    "workers/adopted.py",
    "workers/fork_server.py",
    "workers/allocated.py",
    "workers/children.py",
    "workers/packages/inside/sessions.py",
    "workers/packages/inside/adapters/openenv_servers.py",
}
"""Beside the two readers: `asgi.py` and `manage.py` name the settings module; a device worker, the job of a cluster and
an actor of Ray pass their environment on to their children (as the launcher does) and the child checks whose it is. An
agent program is told its session in variables, and a server of OpenEnv its settings, before either is imported."""
PURE = ("platform/flexmarl/contracts", "platform/flexmarl/algorithms", "platform/flexmarl/orchestrator")


def python_files(*folders: str) -> list[Path]:
    found: list[Path] = []
    for folder in folders:
        path = ROOT / folder
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_file_keeps_the_rules() -> None:
    findings = [
        str(finding)
        for path in python_files(*SOURCES)
        for finding in checks.check_source(name_of(path), path.read_text(encoding="utf-8"))
    ]
    assert not findings, "\n".join(findings)


def test_tests_and_benchmarks_keep_the_file_budget() -> None:
    long = {name_of(p): n for p in python_files("tests") if (n := len(p.read_text().splitlines())) > checks.FILE_LINES}
    assert not long


def test_the_environment_is_read_in_one_file_per_plane() -> None:
    readers = {
        name_of(path)
        for path in python_files(*SOURCES)
        if "launcher" not in path.parts and checks.reads_environment(path.read_text(encoding="utf-8"))
    }
    assert readers <= ENVIRONMENT_READERS, readers - ENVIRONMENT_READERS


def test_the_core_never_asks_what_time_it_is() -> None:
    found = {name_of(path): lines for path in python_files(*PURE) if (lines := checks.reads_clock(path.read_text()))}
    assert not found


def test_every_connection_bounds_its_statements() -> None:
    """Whoever opens a connection says there how long a statement may take."""
    opened = re.compile(r"\bpsycopg\.connect\(|\bConnectionPool\(|\bAsyncConnection")
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in python_files(*SOURCES)}
    opening = {name: text for name, text in texts.items() if opened.search(text)}
    assert len(opening) >= 5, "the pattern still finds those that open connections"
    assert [name for name, text in opening.items() if "statement_timeout" not in text] == []


def test_no_package_hides_the_standard_library_or_breaks_collection() -> None:
    assert checks.misplaced_packages(ROOT) == []


def test_every_folder_with_code_is_a_package() -> None:
    assert checks.packages_without_init(ROOT) == []


BODY = "    x = 1\n"
BROKEN = {
    "file has 401 lines": "x = 1\n" * 401,
    "function f has 62 lines": "def f() -> None:\n" + BODY * 61,
    "class C has 301 lines": "class C:\n" + "    a = 1\n" * 300,
    "class C assigns 13 attributes": "class C:\n    def f(self) -> None:\n"
    + "".join(f"        self.a{i} = 1\n" for i in range(13)),
    "class C declares 17 fields": "@dataclass\nclass C:\n" + "".join(f"    a{i}: int\n" for i in range(17)),
    "class Progress declares 27 fields": "class Progress(Record):\n"
    + "".join(f"    a{i}: int = 0\n" for i in range(27)),
    "function f has no return annotation": "def f():\n    pass\n",
    "broad except": "try:\n    pass\nexcept Exception:  # noqa: BLE001\n    pass\n",
    "print in a library": "print('x')\n",
    "import of json inside a function": "def f() -> None:\n    import json\n",
}


@pytest.mark.parametrize("rule", sorted(BROKEN))
def test_a_broken_rule_is_found(rule: str) -> None:
    findings = list(checks.check_source("x.py", BROKEN[rule]))
    assert [rule in finding.rule for finding in findings] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    pass\nexcept Exception:  # noqa: BLE001 - a plug-in may raise anything\n    pass\n",
        "try:\n    pass\nexcept Exception:\n    # a plug-in may raise anything\n    pass\n",
        "try:\n    pass\nexcept BaseException:\n    x = 1\n    raise\n",
        "def f() -> None:\n    import torch\n",
        "def f() -> None:\n" + BODY * 59,
        "class C:\n" + "".join(f"    a{i}: int\n" for i in range(16)) + "    b: ClassVar[int] = 1\n",
    ],
)
def test_what_is_allowed_passes(text: str) -> None:
    assert not list(checks.check_source("x.py", text))


def test_large_values_are_as_large_as_declared() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in python_files(*SOURCES)]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = {node.name: checks.fields_of(node) for node in classes if checks.fields_of(node) > checks.CLASS_FIELDS}
    assert found == {name: most for name, (most, _) in checks.LARGE_VALUES.items()}


@pytest.mark.parametrize("text", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"])
def test_reading_the_environment_is_found(text: str) -> None:
    assert checks.reads_environment(text)


@pytest.mark.parametrize("text", ["datetime.now()", "datetime.datetime.utcnow()", "date.today()"])
def test_asking_the_clock_is_found(text: str) -> None:
    assert checks.reads_clock(text)


def test_misplaced_packages_are_found(tmp_path: Path) -> None:
    for folder in ("platform", "tests/unit", "webui/views", "migrations", "workers", "platform/flexmarl"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for file in ("platform/__init__.py", "tests/unit/__init__.py", "webui/views/run.py"):
        (tmp_path / file).write_text(textwrap.dedent(""))
    assert checks.misplaced_packages(tmp_path) == ["platform/__init__.py", "tests/unit/__init__.py"]
    assert checks.packages_without_init(tmp_path) == ["webui/views"]


def test_templates_keep_their_width() -> None:
    templates = sorted((ROOT / "webui/templates").rglob("*.html"))
    assert len(templates) > 90
    wide = {name_of(path): found for path in templates if (found := checks.wide_lines(path.read_text("utf-8")))}
    assert wide == {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("<p>" + "word " * 28 + "</p>", [1]),
        ("<p class='a' " + 'title="' + "word " * 28 + '">', [1]),
        ("  title=" + '"' + "word " * 28 + '"', []),
        ("  title=" + '"' + "word " * 40 + '"', [1]),
        ("  {% include 'part.html' with " + "a=b " * 30 + "%}", []),
        ("<p>" + "word " * 26 + "</p>", []),
    ],
)
def test_a_wide_template_is_found(line: str, found: list[int]) -> None:
    assert checks.wide_lines(line) == found


def conflict_marks(text: str) -> list[str]:
    """Lines that a merge left to be decided."""
    return [line for line in text.splitlines() if line[:8] in ("<" * 7 + " ", ">" * 7 + " ")]


def test_no_file_holds_the_marks_of_a_merge() -> None:
    kinds = ("py", "html", "css", "js", "md", "toml", "yaml", "sh")
    folders = (
        "platform",
        "webui",
        "workers",
        "migrations",
        "docs",
        "tests",
        "scripts",
        "examples",
        "requirements",
        "deploy",
    )
    paths = [path for folder in folders for kind in kinds for path in (ROOT / folder).rglob(f"*.{kind}")]
    assert len(paths) > 500
    found = {str(path.relative_to(ROOT)): conflict_marks(path.read_text(encoding="utf-8")) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_marks_of_a_merge_are_found() -> None:
    assert len(conflict_marks("a\n" + "<" * 7 + " HEAD\nb\n" + "=" * 7 + "\nc\n" + ">" * 7 + " other\n")) == 2
