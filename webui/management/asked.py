"""What commands about simulations are asked on their command line: workloads and changes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import CommandError


def workload_named(named: str) -> str | Mapping[str, Any]:
    """Return a built-in workload's name, or the scenario of a file. Raises CommandError for one that cannot be read."""
    if not named.endswith((".yaml", ".yml")):
        return named
    try:
        document = yaml.safe_load(Path(named).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise CommandError(f"--workload {named} cannot be read: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("scenario"), dict):
        raise CommandError(f"--workload {named} has no mapping `scenario`, as the built-in ones have.")
    return dict(document["scenario"])


def change(text: str) -> dict[str, Any]:
    """Read PATH=VALUE as a document to lay over a scenario. Raises CommandError for anything else."""
    path, _, value = text.partition("=")
    if not path or not value:
        raise CommandError(f"--set {text} is no PATH=VALUE, e.g. spec.batch.tasks_per_step=32")
    changed: Any = yaml.safe_load(value)
    for name in reversed(path.split(".")):
        changed = {name: changed}
    return dict(changed)
