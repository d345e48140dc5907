"""What others read of experiments: templates, presets, the schema, experiments as plain values."""

from dataclasses import asdict
from functools import cache
from typing import Any
from uuid import UUID

from django.db.models import Count, QuerySet

from flexmarl.contracts.arithmetic import arithmetic
from flexmarl.contracts.resolve import load_presets, load_templates, preset_aliases, resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.kinds import ALL_KINDS
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.experiments.models import Experiment


@cache
def templates() -> tuple[dict[str, Any], ...]:
    """All built-in templates with what they resolve to."""
    return tuple(_template_row(name) for name in load_templates())


def template(name: str) -> dict[str, Any]:
    """One template. Raises NotFound naming the existing ones."""
    for row in templates():
        if row["name"] == name:
            return row
    raise NotFound(f"Template {name} does not exist. Templates: {', '.join(load_templates())}.")


def resolved(name: str) -> dict[str, Any] | None:
    """Return what a template resolves to; None when there is no such template (any more)."""
    return next((row["spec"] for row in templates() if row["name"] == name), None)


@cache
def presets() -> tuple[dict[str, Any], ...]:
    """All built-in presets."""
    return tuple(
        {
            "name": preset.name,
            "title": preset.title,
            "description": preset.description,
            "paper": preset.paper,
            "aliases": list(preset_aliases()[preset.name]),
            "spec": preset.spec,
            "url": "/api/v1/presets",
        }
        for preset in load_presets().values()
    )


@cache
def plugins() -> tuple[dict[str, Any], ...]:
    """Every plug-in by kind: those that a specification may name, then those that cannot be used, and why."""
    rows = []
    for kind in ALL_KINDS:
        rows += [
            {**asdict(manifest), "pointer": kind.pointer, "problem": ""} for manifest in kind.manifests()
        ] + [
            {
                "kind": kind.name, "pointer": kind.pointer, "name": broken.name, "summary": "", "options": None,
                "distribution": broken.distribution, "version": "", "problem": broken.reason, "bias": "",
            }
            for broken in kind.broken()
        ]  # fmt: skip
    return tuple(rows)


@cache
def config_schema() -> dict[str, Any]:
    """JSON Schema of the specification."""
    schema = ExperimentSpec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


def _template_row(name: str) -> dict[str, Any]:
    found, made = load_templates()[name], resolve({}, template=name)
    facts = made.spec.environment.facts()
    return {
        "name": name,
        "title": found.title,
        "description": found.description,
        "group": found.group,
        "preset": found.preset,
        "expected": found.expected,
        "environment": made.spec.environment.type,
        "environment_title": facts.title,
        "roles": [role.name for role in facts.roles],
        "spec": made.document,
        "sources": made.sources,
        "arithmetic": arithmetic(made.spec).model_dump(mode="json"),
        "url": f"/api/v1/templates/{name}",
        "web_url": f"/runs/new?template={name}",
    }


def experiments(actor: Actor) -> QuerySet[Experiment]:
    """The experiments that the caller may read, with the number of their runs."""
    shown = ("owner__username", "baseline__key", "baseline__name")
    rows = Experiment.objects.select_related("owner", "baseline").only(*_columns(), *shown)
    return in_reach(rows.annotate(run_count=Count("runs")), actor, Scope.RUNS_READ)


@cache
def _columns() -> tuple[str, ...]:
    return tuple(field.name for field in Experiment._meta.concrete_fields)


def find_experiment(actor: Actor, experiment_id: UUID) -> Experiment:
    """Return an experiment that the caller may read. Raises NotFound."""
    found = experiments(actor).filter(pk=experiment_id).first()
    if found is None:
        raise NotFound("There is no such experiment.")
    return found


def experiment_row(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as a plain value."""
    return {
        "id": str(experiment.id),
        "project": experiment.project_id,
        "name": experiment.name,
        "description": experiment.description,
        "question": experiment.question,
        "baseline": _baseline(experiment),
        "verdict": experiment.verdict,
        "owner": experiment.owner.username if experiment.owner else None,
        "runs": getattr(experiment, "run_count", 0),
        "created_at": rfc3339(experiment.created_at),
        "updated_at": rfc3339(experiment.updated_at),
        "version": experiment.version,
        "url": f"/api/v1/experiments/{experiment.id}",
        "web_url": f"/experiments/{experiment.id}",
    }


def experiment_detail(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment with its long texts."""
    return {**experiment_row(experiment), "notes": experiment.notes, "verdict_text": experiment.verdict_text}


def _baseline(experiment: Experiment) -> dict[str, str] | None:
    run = experiment.baseline
    return None if run is None else {"id": str(run.pk), "key": run.key, "name": run.name}
