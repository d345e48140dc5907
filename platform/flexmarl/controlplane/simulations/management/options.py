"""What commands about simulations are asked on their command line: workloads, changes, files to read and to write."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import CommandError


def workload_named(named: str) -> str | Mapping[str, Any]:
    """Return a built-in workload's name, or the scenario of a file. Raises CommandError for one that cannot be read."""
    if not named.endswith((".yaml", ".yml")):
        return named
    document = yaml_of("--workload", Path(named))
    if not isinstance(document, dict) or not isinstance(document.get("scenario"), dict):
        raise CommandError(f"--workload {named} has no mapping `scenario`, as the built-in ones have.")
    return dict(document["scenario"])


def change(text: str) -> dict[str, Any]:
    """Read PATH=VALUE as a document to lay over a scenario. Raises CommandError for anything else."""
    path, _, value = text.partition("=")
    if not value or not all(path.split(".")):
        raise CommandError(f"--set {text} is not of the form PATH=VALUE, e.g. spec.batch.tasks_per_step=32")
    try:
        changed: Any = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise CommandError(f"--set {path}: {value} is not a YAML value; write e.g. 32, [1, 2] or '{{a: 1}}'") from error
    for name in reversed(path.split(".")):
        changed = {name: changed}
    return dict(changed)


def yaml_of(option: str, path: Path) -> Any:
    """Read a YAML file. Raises CommandError, naming the option, for one that cannot be read."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"{option} {path} cannot be read as YAML: {error}") from error


def check_writable(options: Mapping[str, Any], *names: str) -> None:
    """Refuse files that could not be written once all is played. Raises CommandError naming the option."""
    for name in names:
        path: Path | None = options[name]
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            raise CommandError(f"--{name} {path} cannot be written: name a file in an existing folder.")
