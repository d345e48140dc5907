"""Under which licence a model is, as its maker says it: in its configuration, or at the head of its model card.

A model card is README.md, which begins with YAML between two lines of three dashes; `license` names the licence, and
`license_name` the one that is no common one (`other`). Source of the form: the model cards of the Hugging Face hub.
"""

from collections.abc import Mapping

import yaml

from flexmarl.contracts.yaml_text import load
from workers.models.cards import CARD, DASHES
from workers.models.opening import ModelFolder

MOST = 200
"""Most characters of a licence's name."""


def licence_in(folder: ModelFolder, config: Mapping[str, object]) -> str:
    """Return the licence of a model's folder; empty where nothing says one. Raises UnsupportedModel for a card that
    is no regular file, or too long."""
    named = _named(config)
    return named or (_named(_head(folder.read(CARD).decode(errors="replace"))) if folder.has(CARD) else "")


def _head(card: str) -> Mapping[str, object]:
    lines = card.splitlines()
    if not lines or lines[0].strip() != DASHES or DASHES not in lines[1:]:
        return {}
    try:
        found = load("\n".join(lines[1 : lines.index(DASHES, 1)]))
    except (yaml.YAMLError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _named(told: Mapping[str, object]) -> str:
    licence = told.get("license")
    if isinstance(licence, list):
        licence = ", ".join(map(str, licence))
    if licence == "other" and isinstance(told.get("license_name"), str):
        licence = told["license_name"]
    return " ".join(licence.split())[:MOST] if isinstance(licence, str) else ""
