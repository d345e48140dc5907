"""The product's environment protocol for packages that are written to it: its modules, copied into their environment,
and the few distributions that these import, at the versions that the product has."""

import shutil
from importlib.metadata import version
from pathlib import Path

import flexmarl
import workers

NEEDS = ("pydantic", "jinja2", "numpy", "orjson", "msgspec")
"""What `workers.rollout.environments.base` imports beyond the standard library."""
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "controlplane", "launcher", "simulator", "store", "training", "nodes")


def requirements() -> list[str]:
    """Return the distributions as requirements."""
    return [f"{name}=={version(name)}" for name in NEEDS]


def copy_into(site: Path) -> None:
    """Copy the modules into the site folder of an environment, in place of whatever has their names there: what is
    foreign may be a link elsewhere."""
    for package in (flexmarl, workers):
        source = Path(next(iter(package.__path__)))
        target = site / source.name
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif target.exists():
            shutil.rmtree(target)
        shutil.copytree(source, target, ignore=_LEFT_OUT)
