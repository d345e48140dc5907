"""What the files of deploy/ say, read once for the tests that compare them with the product."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from flexmarl.launcher.plan import Options, process_specs

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/flexmarl"
COMPOSE = DEPLOY / "compose/compose.yaml"
CHECKOUT = Path("/opt/flexmarl")
"""Where the image has it."""
HOME = Path("/var/lib/flexmarl")
READERS = (*(ROOT / "platform/flexmarl/controlplane/settings").glob("*.py"), ROOT / "workers/settings.py")
NAMED = re.compile(r'"((?:FLEXMARL_[A-Z_]*[A-Z])|DATABASE_URL|REDIS_URL|DJANGO_SETTINGS_MODULE)"')


def known_settings() -> set[str]:
    """Return the names of all settings that web, driver or workers read."""
    contracts = [ROOT / "platform/flexmarl/contracts" / f"{name}.py" for name in SHARED_NAMES]
    return {name for path in (*READERS, *contracts) for name in NAMED.findall(path.read_text())}


SHARED_NAMES = ("folder_roots", "hub_models", "uploaded_models")
"""Modules that name a setting which both sides read."""


def commands() -> dict[str, list[str]]:
    """Return each process of `manage.py up` with its command, as the image has it."""
    options = Options(CHECKOUT, HOME, "0.0.0.0", 8000, "node")
    return {spec.name: _in_image(list(spec.args)) for spec in process_specs(options, 8000)}


def _in_image(words: list[str]) -> list[str]:
    return ["python", *(word.removeprefix(f"{CHECKOUT}/") for word in words[1:])]


def compose() -> dict[str, Any]:
    """Return the compose file."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def containers(manifest: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the containers of a manifest with pods, those that begin before the others included."""
    pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
    for one in (*pod.get("initContainers", ()), *pod.get("containers", ())):
        yield one["name"], one
