"""The playground of a run: choose an agent and a version, write an observation, read the reply token by token.

The page reads what the agent knows; it talks through the same routes as any client of OpenAI's dialect.
"""

from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import ProblemError
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.playground import queries as playground
from webui.views.base import page, show, whole_number
from webui.views.run import run_frame


@page()
def talk(request: HttpRequest, key: str) -> HttpResponse:
    """Show how to talk to one agent of the run, or why that cannot be."""
    context = run_frame(request, key, "playground")
    agents = context["run"]["agents"]
    asked = request.GET.get("agent", "")
    agent = next((one for one in agents if one["role"] == asked), agents[0] if agents else None)
    shown = {
        "agent": agent,
        "talk": None,
        "refusal": "",
        "may": actor_of(request).may(Scope.MODELS_USE, _project(context)),
    }
    if agent and shown["may"]:
        shown.update(_known(actor_of(request), context, agent, whole_number(request, "version")))
    return show(request, "webui/run_playground.html", {**context, **shown})


def _known(actor: Actor, context: dict[str, Any], agent: dict[str, Any], version: int | None) -> dict[str, Any]:
    """Read the agent, or the reason why there is nobody to talk to."""
    name = f"{context['run']['key']}/{agent['role']}"
    try:
        model = playground.find(actor, name if version is None else f"{name}@{version}")
        known = playground.agent(model)
    except ProblemError as problem:
        return {"refusal": problem.detail}
    may_read = actor.may(Scope.TRAJECTORIES_READ, _project(context))
    live = playground.served(context["found"]).get(model.policy, [])
    return {
        "talk": {**known, "examples": known["examples"] if may_read else []},
        "version": model.version,
        "asked_version": version,
        "model": name,
        "live": model.version in live,
    }


def _project(context: dict[str, Any]) -> str:
    return str(context["run"]["project"])
