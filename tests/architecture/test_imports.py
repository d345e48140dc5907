"""The import contracts of pyproject.toml hold, and each is seen to break on a seeded import."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
