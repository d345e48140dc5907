"""The import contracts of pyproject.toml hold, and each is seen to break on a seeded import."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import WITH_DJANGO

ROOT = Path(__file__).resolve().parents[2]
TREES = ("platform", "webui", "workers", "migrations")

SEEDS = {
    "the pages ask the control plane, which asks the orchestrator": (
        "platform/flexmarl/algorithms/seeded.py",
        "import flexmarl.orchestrator",
    ),
    "the core is pure": ("platform/flexmarl/orchestrator/seeded.py", "import time"),
    "the simulator is built from scenarios up": (
        "platform/flexmarl/simulator/scenarios/seeded.py",
        "import flexmarl.simulator.cluster",
    ),
    "rooms of the orchestrator": (
        "platform/flexmarl/orchestrator/pool/seeded.py",
        "import flexmarl.orchestrator.serving.weight_sync",
    ),
    "rooms of the store": ("platform/flexmarl/store/control/seeded.py", "import flexmarl.store.data.groups"),
    "the store sits on the contracts": ("platform/flexmarl/store/seeded.py", "import flexmarl.algorithms"),
    "workers know contracts, algorithms and store": ("workers/seeded.py", "import django"),
    "models are loaded by workers only": ("webui/seeded.py", "import torch"),
    "the launcher stands alone": ("platform/flexmarl/launcher/seeded.py", "import redis"),
    "pages read through queries": ("webui/seeded2.py", "import flexmarl.controlplane.runs.models"),
    "apps of the control plane": (
        "platform/flexmarl/controlplane/common/seeded.py",
        "import flexmarl.controlplane.runs.queries",
    ),
    "no cycles between packages": ("workers/models/seeded.py", "import workers.rollout.player"),
}


def lint(root: Path) -> tuple[int, str]:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    environment = {**os.environ, "PYTHONPATH": f"{root / 'platform'}{os.pathsep}{root}"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def test_contracts_are_kept() -> None:
    code, output = lint(ROOT)
    assert code == 0, output


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("seeded")
    for tree in TREES:
        shutil.copytree(ROOT / tree, root / tree, ignore=shutil.ignore_patterns("__pycache__", "static", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for path, text in SEEDS.values():
        (root / path).write_text(f"{text}\n")
    code, output = lint(root)
    assert code == 1, output
    return output


@pytest.mark.parametrize("contract", sorted(SEEDS))
def test_a_seeded_import_breaks_its_contract(broken: str, contract: str) -> None:
    assert f"{contract} BROKEN" in broken, broken


NAMED = re.compile(
    r"^(?:from ((?:webui|flexmarl\.controlplane)[\w.]*) import|import ((?:webui|flexmarl\.controlplane)[\w.]*))", re.M
)


def test_what_tests_outside_the_folders_with_django_import_needs_no_settings() -> None:
    """`./scripts/test tests/unit` loads no Django (tests/conftest.py), so that it starts at once."""
    files = [
        path for path in (ROOT / "tests").rglob("test_*.py") if not path.is_relative_to(ROOT / "tests/architecture")
    ]
    without = [path for path in files if not any(path.is_relative_to(ROOT / folder) for folder in WITH_DJANGO)]
    named = {name for path in without for found in NAMED.findall(path.read_text()) for name in found if name}
    assert "webui" in {name.partition(".")[0] for name in named}
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    program = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    done = subprocess.run(
        [sys.executable, "-c", program, *sorted(named)],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"move the test to a folder of {WITH_DJANGO}: {done.stderr[-2000:]}"
