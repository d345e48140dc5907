"""What is installed beside a distribution, and what its modules are."""

import inspect
import re
from importlib import import_module
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any

from .jobs import Job


def normal(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(module: str) -> bool:
    """Tell whether a module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def modules_of(job: Job) -> list[str]:
    """Return the top modules of the distribution that was asked for."""
    try:
        found: Distribution = distribution(job.distribution)
    except PackageNotFoundError:
        return []
    tops = {file.parts[0] for file in found.files or () if len(file.parts) > 1 or file.suffix == ".py"}
    names = {top.removesuffix(".py") for top in tops if not top.endswith((".dist-info", ".data"))}
    return sorted(name for name in names if name.isidentifier() and name != "__pycache__")


def commands_of(name: str) -> list[str]:
    """Return the programs that a distribution installs, by name."""
    try:
        found: Distribution = distribution(name)
    except PackageNotFoundError:
        return []
    named = {point.name for point in found.entry_points if point.group == "console_scripts"}
    placed = {file.name for file in found.files or () if file.parent.name == "bin" and ".." in file.parts}
    return sorted(named | placed)


def named_by(entry: str) -> Any:
    """Return what `module:name` names. Raises ImportError or AttributeError."""
    module, _, name = entry.partition(":")
    thing: Any = import_module(module)
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def public_methods(kind: type) -> list[str]:
    """Return the methods of a class that have a docstring, in their order."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return [name for name, one in found if not name.startswith("_") and inspect.getdoc(one)]


def task_number(task_seed: int, held_out: bool) -> int:
    """Return the seed of a task: none is both trained on and held out."""
    return int((2 * task_seed + held_out) % 2**31)
