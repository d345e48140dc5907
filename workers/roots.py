"""Where this product's source lies, for programs that another interpreter starts."""

import os
from pathlib import Path

import flexmarl.contracts

SOURCE_ROOTS = (Path(__file__).resolve().parents[1], Path(flexmarl.contracts.__file__).resolve().parents[2])
"""Where `workers` and `flexmarl` lie."""


def python_path() -> str:
    """Return PYTHONPATH for an interpreter that finds `workers` and `flexmarl` and nothing else of this one."""
    return os.pathsep.join(map(str, dict.fromkeys(SOURCE_ROOTS)))
