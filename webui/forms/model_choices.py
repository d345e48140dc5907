"""Models that the form of a run offers for a policy: the product's own, those of packages, and imported ones.

Pure: what a document says and rows of models in, choices out. A choice is the smallest source that names its model, so
that a document's model is of a choice where it says the same in all that the choice says.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flexmarl.contracts.model_sizes import FACTORY_SIZES
from flexmarl.contracts.packaged_models import PACKAGED_MODELS
from webui.formats import si


class ModelChoice(NamedTuple):
    label: str
    value: str
    """The model source as JSON."""


Groups = tuple[tuple[str, tuple[ModelChoice, ...]], ...]


def offered(imported: Sequence[Mapping[str, Any]], converses: bool) -> Groups:
    """Return (heading, choices) of all models that a policy may be of; `imported` are rows of models.

    Where the environment speaks in messages (`converses`), those that know only words of games are left out.
    """
    several = len({model["project"] for model in imported}) > 1
    groups = (
        ("Imported", tuple(_imported(model, several) for model in imported)),
        (
            "Packages",
            tuple(choice(one.is_of, {"type": "package", "name": name}) for name, one in PACKAGED_MODELS.items()),
        ),
        (
            "Built in",
            () if converses else tuple(choice(f"factory {s}", {"type": "factory", "size": s}) for s in FACTORY_SIZES),
        ),
    )
    return tuple(group for group in groups if group[1])


def datasets(rows: Sequence[Mapping[str, Any]]) -> tuple[ModelChoice, ...]:
    """Return the newest versions of imported datasets as choices."""
    several = len({row["project"] for row in rows}) > 1
    return tuple(
        choice(f"{row['project'] + '/' if several else ''}{row['name']} v{row['newest']}", named_dataset(row))
        for row in rows
    )


def named_dataset(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what names the newest version of a dataset in a specification."""
    return {"name": row["name"], "version": row["newest"], "project": row["project"]}


def template_of_dataset(mapping: Mapping[str, Any]) -> str:
    """Return the template whose environment plays a dataset, by what of its rows is asked."""
    return "nemo_gym" if mapping.get("request") else "chat_dataset"


def choice(label: str, source: Mapping[str, Any]) -> ModelChoice:
    """Return a choice as the form writes it."""
    return ModelChoice(label, json.dumps(source, sort_keys=True))


def registered(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source that names a version of an imported model."""
    return {"type": "registered", "name": model["name"], "version": model["revision"], "project": model["project"]}


def _imported(model: Mapping[str, Any], several: bool) -> ModelChoice:
    project = f"{model['project']}/" if several else ""
    return choice(f"{project}{model['name']} v{model['revision']}, {si(model['parameters'])}", registered(model))
