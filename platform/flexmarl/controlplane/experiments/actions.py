"""Changes of experiments: permission, write, audit."""

from django.db import transaction

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import DuplicateName, FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments.models import Experiment


@transaction.atomic
def create_experiment(actor: Actor, name: str, description: str = "", project: str = "default") -> Experiment:
    """Create an experiment."""
    actor.require(Scope.RUNS_WRITE, project)
    if not Project.objects.filter(name=project).exists():
        detail = f"There is no project {project}."
        raise ValidationProblem(detail, errors=[FieldError("/project", "unknown_value", detail)])
    experiment, created = Experiment.objects.get_or_create(
        project_id=project, name=name, defaults={"description": description, "owner_id": actor.user_id}
    )
    if not created:
        raise DuplicateName(f"There is an experiment named {name}.", extra={"existing": str(experiment.id)})
    after = {"description": description}
    record(actor, "experiment.create", "experiment", experiment.id, name, project=project, after=after)
    return experiment


@transaction.atomic
def ensure_experiment(actor: Actor, name: str, project: str = "default") -> Experiment:
    """Return the experiment of a name, made if there is none."""
    found = Experiment.objects.filter(project_id=project, name=name).first()
    return found or create_experiment(actor, name, project=project)
