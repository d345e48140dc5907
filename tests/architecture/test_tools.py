"""Ruff, mypy, oxlint and oxfmt are content, and a built wheel holds every package with its data."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKED = ("platform", "webui", "workers", "tests", "manage.py")
DATA = {".yaml", ".sql", ".html", ".css", ".js", ".svg", ".woff2", ".typed"}


def run(*command: str, cwd: Path = ROOT) -> None:
    paths = [str(ROOT / "platform"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # for mypy's plug-ins
    environment = {
        **os.environ,
        "MYPYPATH": str(ROOT / "platform"),
        "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache"),  # wherever it runs: most of what it reads is the same
        "PYTHONPATH": os.pathsep.join(paths),
    }
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_ruff_finds_nothing() -> None:
    run("ruff", "check", *CHECKED)


def test_ruff_would_format_nothing() -> None:
    run("ruff", "format", "--check", *CHECKED)


SCRIPTS = ("webui/static/webui/js", "tests/unit/webui/scripts")
SCRIPT_RULES = {
    "max-lines": "// a line\n" * 401,
    "max-lines-per-function": "export function f() {\n" + "  // a line\n" * 60 + "}\n",
    "no-undef": "nowhere();\n",
    "no-unused-vars": "const unused = 1;\n",
}


def tool(name: str, *options: str, cwd: Path = ROOT) -> None:
    """Run a checker of scripts, which comes as a program of the virtual environment. Fails with what it found."""
    command = [str(Path(sys.executable).parent / name), *options]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_oxlint_finds_nothing_in_the_scripts() -> None:
    tool("oxlint", *SCRIPTS)


def test_oxfmt_would_format_no_script() -> None:
    tool("oxfmt", "--check", *SCRIPTS)


@pytest.mark.parametrize("rule", sorted(SCRIPT_RULES))
def test_a_script_that_breaks_a_rule_is_found(rule: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / ".oxlintrc.json", tmp_path)
    (tmp_path / "broken.js").write_text(SCRIPT_RULES[rule])
    with pytest.raises(AssertionError, match=rule):
        tool("oxlint", "broken.js", cwd=tmp_path)


def test_a_script_in_another_format_is_found(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".oxfmtrc.json", tmp_path)
    (tmp_path / "broken.js").write_text("const a = 'single quotes'\n")
    with pytest.raises(AssertionError, match=r"broken\.js"):
        tool("oxfmt", "--check", "broken.js", cwd=tmp_path)


@pytest.mark.slow
def test_mypy_finds_nothing() -> None:
    run("mypy", "-p", "flexmarl", "-p", "webui", "-p", "workers")


@pytest.mark.slow
def test_mypy_is_strict_everywhere(tmp_path: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True
    ours = {"flexmarl", "webui", "workers", "*"}
    loosened = [name for part in settings["overrides"] for name in part["module"] if name.split(".")[0] in ours]
    assert loosened == [], "a module of ours has rules of its own"
    (tmp_path / "seeded.py").write_text("import django.db.models\n\n\ndef f(x):\n    return x\n")
    with pytest.raises(AssertionError, match="no-untyped-def"):
        run("mypy", "--config-file", str(ROOT / "pyproject.toml"), "seeded.py", cwd=tmp_path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    copy = tmp_path_factory.mktemp("wheel")
    for tree in ("platform", "webui", "workers", "migrations"):
        shutil.copytree(ROOT / tree, copy / tree, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    offline = ("--no-index", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    run("pip", "wheel", "--quiet", *offline, "--wheel-dir", "out", ".", cwd=copy)
    (built,) = (copy / "out").glob("*.whl")
    return set(zipfile.ZipFile(built).namelist())


def test_the_wheel_holds_every_package_and_its_data(wheel: set[str]) -> None:
    expected = set()
    for tree, base in (("platform/flexmarl", "platform"), ("webui", "."), ("workers", "."), ("migrations", ".")):
        for path in (ROOT / tree).rglob("*"):
            if path.suffix in {".py", *DATA} and "__pycache__" not in path.parts:
                expected.add(str(path.relative_to(ROOT / base)))
    assert not expected - wheel


def test_the_wheel_holds_nothing_else(wheel: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"flexmarl", "webui", "workers", "migrations"}
