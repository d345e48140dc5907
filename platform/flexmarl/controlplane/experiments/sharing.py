"""Which projects may exchange rollouts with other installations: those that an administrator named, none by default."""

from django.conf import settings

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification import ExperimentSpec


def refused_sharing(spec: ExperimentSpec, project: str) -> list[Problem]:
    """Return a refusal for a run that shares in a project that has not opted in."""
    if not spec.sampling.sharing.on or not project or project in settings.EXCHANGE_PROJECTS:
        return []
    detail = f"The project {project} does not exchange rollouts with other installations."
    hint = "Set none, or ask an operator to add the project to FLEXMARL_EXCHANGE_PROJECTS."
    return [Problem(pointer="/sampling/sharing/type", code="not_opted_in", detail=detail, hint=hint)]
