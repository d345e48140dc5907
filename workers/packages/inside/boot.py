"""The entry of a package's interpreter: `python -I boot.py` and `install HOME ...`, `manifest JOB`, `play JOB SOCKET`,
`programs JOB SOCKET`, `tools JOB SOCKET`, `command JOB SOCKET` or `container JOB SOCKET KEEPER`, which `enter BUILD`
before them starts, confined.

This folder becomes a package under a name of its own; no folder of the product is on the path of foreign code.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

NAME = "flexmarl_inside"
ENTRIES = {
    "enter": "entering",
    "install": "installing",
    "manifest": "describing",
    "play": "playing",
    "programs": "starting",
    "tools": "tooling",
    "command": "commanding",
    "container": "contained",
}


def load() -> None:
    """Make this folder importable under its name. Raises ImportError."""
    folder = Path(__file__).resolve().parent
    places = [str(folder)]
    spec = importlib.util.spec_from_file_location(NAME, folder / "__init__.py", submodule_search_locations=places)
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is not a package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    load()
    importlib.import_module(f"{NAME}.{ENTRIES[sys.argv[1]]}").main(sys.argv[2:])
