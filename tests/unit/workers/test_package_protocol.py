"""What the product's environment protocol needs in the environment of a package."""

import os
import subprocess
import sys
from importlib.metadata import packages_distributions

from workers.packages.protocol_kit import NEEDS
from workers.roots import python_path

THEIRS = {"annotated-types", "markupsafe", "pydantic-core", "typing-extensions", "typing-inspection"}
"""What the distributions need themselves."""


def test_the_protocol_imports_no_more_than_an_environment_of_a_package_has() -> None:
    names = "workers.rollout.environments.base, workers.rollout.environments.words"
    new = "{name.split('.')[0] for name in set(sys.modules) - old}"
    told = f"import sys; old = set(sys.modules); import {names}; print(*{new})"
    python = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run([sys.executable, "-c", told], env=python, capture_output=True, text=True, check=True)
    known = packages_distributions()
    brought = {name.lower().replace("_", "-") for top in done.stdout.split() for name in known.get(top, ())}
    assert brought - {"flexmarl"} <= {*NEEDS, *THEIRS}
