"""The REST calls that give a page's data, shown on the page as curl and as Python.

One declaration per page route; a test finds pages without one and runs every call that a page shows. `query` names the
parameters of the page's address that the call takes too: (name on the page, name in the API).
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.http import HttpRequest

TOKEN = "FLEXMARL_TOKEN"
"""Setting of the shell that holds the token in what people copy; no page ever shows a token here."""


@dataclass(frozen=True, slots=True)
class Call:
    """One GET of the API. `path` may name arguments of the page's route, such as `{key}`."""

    words: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    fixed: tuple[tuple[str, str], ...] = ()
    all_but: frozenset[str] | None = None
    """For pages that speak the API's words: takes every parameter of the address but these."""


PAGE_ONLY = frozenset(
    {"columns", "format", "project", "add", "cursor", "view", "after", "before", "with", "open", "tab", "density"}
)
SIMULATION = Call("The request, its progress, figures per preset and seed", "/simulations/{simulation_id}")
"""Parameters of addresses that only pages know."""
RUN = Call("The run: state, step, progress, specification", "/runs/{key}")
REWARDS = (("names", "reward/team,reward/agent"), ("x", "step"))
TRAJECTORY_FILTERS = tuple(
    (name, name)
    for name in (
        "origin", "step", "draw", "status", "solved", "reward__gte", "reward__lte", "agent", "agent_reward__gte",
        "agent_reward__lte", "turns__gte", "turns__lte", "tokens__gte", "tokens__lte", "duration_s__gte",
        "duration_s__lte", "version", "search", "said", "said_by", "broken", "label", "ordering",
    )
)  # fmt: skip
"""The page names them as the API does."""
TIMELINE_WINDOW = (("window", "window_s"), ("until", "until"))
LOG_FILTERS = tuple((name, name) for name in ("level", "agent", "node", "q"))
DECISION_FILTERS = tuple((name, name) for name in ("kind", "policy", "step"))
MOVED_FILTERS = (("moved", "kind"), ("policy", "policy"), ("step", "step"))
NARROWED_BY_NAME = (("q", "name__ic"), ("verdict", "verdict"), ("state", "state"))
SERIES = Call("Reward per agent by step", "/runs/{key}/series/data", fixed=REWARDS)
CALLS: dict[str, tuple[Call, ...]] = {
    "home": (
        Call("Runs that are training", "/runs", fixed=(("status", "running"),)),
        Call("Runs that wait for devices", "/runs", fixed=(("status", "queued"),)),
        Call("Devices and who holds them", "/devices"),
    ),
    "storage": (Call("Space by run and project, limits, and next deletions", "/storage"),),
    "runs": (Call("The runs of this list", "/runs", all_but=PAGE_ONLY),),
    "new_run": (
        Call("Templates to start from", "/templates"),
        Call("Presets", "/presets"),
        Call("JSON Schema of a specification", "/config-schema"),
        Call("Plug-ins and their options", "/plugins"),
    ),
    "run": (RUN, SERIES, Call("Measured rates, and the devices it is proposed", "/runs/{key}/replan")),
    "trajectories": (
        Call("The trajectories of this list", "/runs/{key}/trajectories", query=TRAJECTORY_FILTERS),
        Call("What its filters match, counted", "/runs/{key}/trajectories/facets", query=TRAJECTORY_FILTERS[:-1]),
        Call("All of them, one per line", "/runs/{key}/trajectories/export", query=TRAJECTORY_FILTERS),
    ),
    "sessions": (Call("The sessions of this list", "/runs/{key}/sessions", all_but=PAGE_ONLY),),
    "tasks": (Call("The tasks of this list", "/runs/{key}/tasks", all_but=PAGE_ONLY),),
    "session": (Call("This session with the files that changed", "/runs/{key}/sessions/{session_id}"),),
    "trajectory": (
        Call("This trajectory with turns and group", "/runs/{key}/trajectories/{tid}"),
        Call("Its tokens and log-probabilities", "/runs/{key}/trajectories/{tid}/tokens"),
    ),
    "trajectory_compare": (Call("The members of this group", "/runs/{key}/trajectories", query=(("draw", "draw"),)),),
    "checkpoints": (
        Call("Checkpoints", "/runs/{key}/checkpoints"),
        Call("The newest version of each policy", "/runs/{key}/versions"),
        Call("The last consistency check, with its time", "/runs/{key}/consistency"),
    ),
    "metrics": (Call("Every series with its unit", "/runs/{key}/series"), SERIES),
    "agents": (RUN, SERIES),
    "agent": (RUN, SERIES),
    "pipeline": (
        Call("Data flow through the pipeline", "/runs/{key}/pipeline", query=(("step", "step"),)),
        Call("Cohorts: progress and what each waits for", "/runs/{key}/cohorts"),
        Call("Lag of every trained policy", "/runs/{key}/lag"),
        Call("Rows of the store by place", "/runs/{key}/store"),
        Call("Idle device time by cause", "/runs/{key}/bubble"),
        Call("What the advisor finds", "/runs/{key}/advisories"),
    ),
    "load": (
        Call("Demand against engines, queues, open turns", "/runs/{key}/load", query=(("window", "window_s"),)),
        Call("Engines with their states", "/runs/{key}/engines", query=(("policy", "policy"),)),
        Call(
            "Engine slots assigned and moved, with their cost",
            "/runs/{key}/engine-moves",
            query=(("policy", "policy"),),
        ),
        Call("Policies on trainer devices, with their cost", "/runs/{key}/swaps", query=(("policy", "policy"),)),
    ),
    "attempts": (Call("Attempts, each with the reason it ended", "/runs/{key}/attempts"),),
    "playground": (
        RUN,
        Call("The newest version of each policy", "/runs/{key}/versions"),
        Call("Trajectories to take observations from", "/runs/{key}/trajectories", fixed=(("limit", "8"),)),
    ),
    "timeline": (
        Call("What each device did", "/runs/{key}/timeline", query=TIMELINE_WINDOW),
        Call("Leases and devices", "/devices"),
    ),
    "events": (
        Call("Events in order; continue after next_after", "/runs/{key}/events", fixed=(("limit", "100"),)),
        Call("Decisions with their reasons, newest first", "/runs/{key}/decisions", query=DECISION_FILTERS),
        Call("What moved each policy's data, newest first", "/runs/{key}/transitions", query=MOVED_FILTERS),
        Call("Log lines in order; continue after next_after", "/runs/{key}/logs", query=LOG_FILTERS),
        Call("The last consistency check, with its time", "/runs/{key}/consistency"),
    ),
    "config": (RUN,),
    "models": (Call("The models of this list; archived=no leaves out archived ones", "/models", all_but=PAGE_ONLY),),
    "import_model": (Call("Imports that wait or run", "/models", fixed=(("state", "queued"), ("state", "running"))),),
    "model": (
        Call("This version with what was found in it", "/models/{model_id}"),
        Call("Runs that use it", "/runs?archived=any&model={model_id}"),
    ),
    "packages": (Call("The packages of this list", "/packages", all_but=PAGE_ONLY),),
    "build_package": (
        Call("Builds that wait or run", "/packages", fixed=(("state", "queued"), ("state", "building"))),
    ),
    "package": (Call("This package with its manifest and log", "/packages/{package_id}"),),
    "datasets": (
        Call("The datasets of this list", "/datasets", all_but=PAGE_ONLY),
        Call("Rows that were imported", "/row-sets"),
    ),
    "import_dataset": (Call("Datasets that are there already", "/datasets"),),
    "dataset": (
        Call("The dataset", "/datasets/{dataset_id}"),
        Call("Its versions", "/datasets/{dataset_id}/versions"),
    ),
    "experiments": (
        Call("The experiments of this list", "/experiments", query=(("q", "name__ic"), ("verdict", "verdict"))),
    ),
    "experiment": (
        Call("Question, notes, baseline and verdict", "/experiments/{experiment_id}"),
        Call("Its runs", "/runs?experiment={experiment_id}"),
        Call("Its runs beside each other", "/run-comparison?experiment={experiment_id}"),
    ),
    "compare": (Call("The comparison", "/run-comparison", all_but=PAGE_ONLY),),
    "sweeps": (Call("The sweeps of this list", "/sweeps", query=NARROWED_BY_NAME),),
    "new_sweep": (Call("Templates to start from", "/templates"), Call("Fields that may be searched", "/config-schema")),
    "sweep": (Call("The sweep with its trials", "/sweeps/{sweep_id}"),),
    "evaluations": (Call("The evaluations of this list", "/evaluations", all_but=PAGE_ONLY),),
    "new_evaluation": (Call("Suites to choose from", "/suites"),),
    "evaluation": (Call("The evaluation with its table", "/evaluations/{evaluation_id}"),),
    "suites": (Call("The suites of this list", "/suites", all_but=PAGE_ONLY),),
    "new_suite": (Call("Suites that are there already", "/suites"),),
    "suite": (
        Call("The suite", "/suites/{suite_id}"),
        Call("Its leaderboard", "/suites/{suite_id}/leaderboard"),
        Call("Its versions", "/suites/{suite_id}/versions"),
    ),
    "agent_definitions": (Call("The agents of this list", "/agents", query=(("project", "project"),)),),
    "new_agent_definition": (Call("Agents that are defined already", "/agents"),),
    "agent_definition": (
        Call("The agent and the settings of its newest version", "/agents/{agent_id}"),
        Call("Its versions", "/agents/{agent_id}/versions"),
    ),
    "teams": (Call("The teams of this list", "/teams", query=(("project", "project"),)),),
    "new_team": (Call("Teams that are described already", "/teams"),),
    "team": (
        Call("The team and the settings of its newest version", "/teams/{team_id}"),
        Call("Its versions", "/teams/{team_id}/versions"),
    ),
    "simulations": (Call("The simulations of this list", "/simulations", all_but=PAGE_ONLY),),
    "new_simulation": (Call("Workloads to choose from", "/workloads"), Call("Presets", "/presets")),
    "simulation": (
        SIMULATION,
        Call("What every device did under a preset", "/simulations/{simulation_id}/timeline", query=(("of", "name"),)),
    ),
    "what_if": (
        Call("Available changes, and what is recorded", "/runs/{key}/what-if"),
        Call("Simulations requested so far", "/simulations", fixed=(("kind", "what_if"),)),
    ),
    "cluster": (
        Call("Nodes", "/nodes"),
        Call("Devices and who holds them", "/devices", query=(("pool", "pool"),)),
        Call("Pools with bindings and quotas", "/pools"),
        Call("What administrators changed", "/changes"),
    ),
    "queue": (Call("Waiting runs, and what each waits for", "/queue"), Call("Quotas", "/quotas")),
    "pool": (Call("Pools", "/pools"), Call("Quotas", "/quotas")),
    "changes": (Call("Changes of pools, nodes and devices", "/changes"),),
    "cluster_timeline": (
        Call("What every device did", "/timeline", query=(*TIMELINE_WINDOW, ("pool", "pool"))),
        Call("Devices and who holds them", "/devices"),
    ),
    "tokens": (Call("Your tokens, without their text", "/tokens"),),
    "serving_keys": (
        Call("Serving keys of the project, and what each used today", "/projects/{project}/serving-keys"),
    ),
    "members": (
        Call("Members of the project", "/projects/{project}/members"),
        Call("Projects you are in", "/projects"),
    ),
    "service_accounts": (
        Call("Service accounts of the project", "/projects/{project}/service-accounts"),
        Call("Tokens you may revoke", "/tokens", fixed=(("whose", "all"),)),
    ),
    "projects": (Call("All projects", "/projects"),),
    "users": (Call("All people", "/users", query=(("q", "username__ic"), ("role", "role"))),),
    "audit": (
        Call(
            "The rows of this page",
            "/audit",
            query=tuple((name, name) for name in ("actor", "action", "target_kind", "target_id", "request_id")),
        ),
    ),
    "profile": (Call("The caller and their permissions", "/me"),),
    "help": (Call("The OpenAPI document", "/openapi.json"),),
    "components": (Call("The OpenAPI document", "/openapi.json"),),
    "plugins": (Call("Plug-ins and their options", "/plugins"),),
}
"""Route name of a page -> its calls."""


def of(request: HttpRequest) -> list[dict[str, Any]]:
    """The calls of the page a request asks for, as text to copy."""
    match = request.resolver_match
    if match is None:
        return []
    origin = f"{request.scheme}://{request.get_host()}"
    arguments = {name: quote(str(value), safe="") for name, value in match.kwargs.items()}
    arguments.setdefault("project", quote(_project(request), safe=""))
    return [written(call, origin, arguments, request) for call in CALLS.get(match.url_name or "", ())]


def written(call: Call, origin: str, arguments: dict[str, str], request: HttpRequest) -> dict[str, Any]:
    """One call as an address, as curl and as Python."""
    names = call.query
    if call.all_but is not None:
        names = tuple((name, name) for name in request.GET if name not in call.all_but)
    taken = [(api, value) for page, api in names for value in request.GET.getlist(page) if value]
    query = urlencode([*call.fixed, *taken], safe="/,")
    path = call.path.format(**arguments)
    url = f"{origin}/api/v1{path}{'?' if query else ''}{query}"
    shown = url.removeprefix(origin)
    return {"words": call.words, "path": shown, "curl": curl(url), "python": python(url)}


def _project(request: HttpRequest) -> str:
    """The project that pages are narrowed to; any of the person's own when they are not."""
    chosen = request.session.get("project", "all")
    if chosen != "all":
        return str(chosen)
    return str(next(iter(getattr(request.user, "in_projects", {})), settings.DEFAULT_PROJECT))


def curl(url: str) -> str:
    """Write a GET for a shell."""
    return f"curl -s -H \"Authorization: Bearer ${TOKEN}\" '{url}'"


def python(url: str) -> str:
    """Write a GET for Python, with the standard library alone."""
    return f"""import json, os, urllib.request

request = urllib.request.Request(
    "{url}",
    headers={{"Authorization": "Bearer " + os.environ["{TOKEN}"]}},
)
with urllib.request.urlopen(request) as answer:
    print(json.load(answer))"""
