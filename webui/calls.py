"""The REST calls that give a page's data, shown on the page as curl and as Python.

One declaration per page route; a test finds pages without one and runs every call that a page shows. `query` names the
parameters of the page's address that the call takes too: (name on the page, name in the API).
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

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


RUN = Call("The run: state, step, progress, specification", "/runs/{key}")
REWARDS = (("names", "reward/team,reward/agent"), ("x", "step"))
CALLS: dict[str, tuple[Call, ...]] = {
    "home": (
        Call("Runs that are training", "/runs", fixed=(("status", "running"),)),
        Call("Runs that wait for devices", "/runs", fixed=(("status", "queued"),)),
        Call("Devices and who holds them", "/devices"),
    ),
    "runs": (
        Call("The runs of this list", "/runs", query=(("q", "q"), ("template", "template"), ("state", "status"))),
    ),
    "new_run": (
        Call("Templates to start from", "/templates"),
        Call("Presets", "/presets"),
        Call("JSON Schema of a specification", "/config-schema"),
    ),
    "run": (RUN, Call("Reward per agent by step", "/runs/{key}/series/data", fixed=REWARDS)),
    "trajectories": (Call("The trajectories of this list", "/runs/{key}/trajectories", query=(("step", "step"),)),),
    "trajectory": (Call("This trajectory with turns, tokens and group", "/runs/{key}/trajectories/{tid}"),),
    "timeline": (
        Call("What each device did", "/runs/{key}/timeline", query=(("window", "window_s"),)),
        Call("Leases and devices", "/devices"),
    ),
    "events": (
        Call("The log in order; go on behind next_after", "/runs/{key}/events", fixed=(("limit", "100"),)),
        Call("The promises, checked on the rows", "/runs/{key}/consistency"),
    ),
    "config": (RUN,),
    "cluster": (Call("Nodes", "/nodes"), Call("Devices and who holds them", "/devices"), Call("Pools", "/pools")),
    "tokens": (Call("Your tokens, without their text", "/tokens"),),
    "members": (Call("Projects you are in", "/projects"), Call("Your roles in them", "/me")),
    "service_accounts": (Call("Tokens you may revoke", "/tokens", fixed=(("whose", "all"),)),),
    "projects": (Call("All projects", "/projects"),),
    "users": (Call("All people", "/users", query=(("q", "username__ic"), ("role", "role"))),),
    "audit": (
        Call(
            "The rows of this page",
            "/audit",
            query=tuple((name, name) for name in ("actor", "action", "target_kind", "target_id", "request_id")),
        ),
    ),
    "profile": (Call("Who calls, and what they may do", "/me"),),
    "help": (Call("The OpenAPI document", "/openapi.json"),),
    "components": (Call("The OpenAPI document", "/openapi.json"),),
}
"""Route name of a page -> its calls."""


def of(request: HttpRequest) -> list[dict[str, Any]]:
    """The calls of the page a request asks for, as text to copy."""
    match = request.resolver_match
    if match is None:
        return []
    origin = f"{request.scheme}://{request.get_host()}"
    arguments = {name: quote(str(value), safe="") for name, value in match.kwargs.items()}
    return [written(call, origin, arguments, request) for call in CALLS.get(match.url_name or "", ())]


def written(call: Call, origin: str, arguments: dict[str, str], request: HttpRequest) -> dict[str, Any]:
    """One call as an address, as curl and as Python."""
    taken = [(api, value) for page, api in call.query for value in request.GET.getlist(page) if value]
    query = urlencode([*call.fixed, *taken], safe="/,")
    path = call.path.format(**arguments) if arguments else call.path
    url = f"{origin}/api/v1{path}{'?' if query else ''}{query}"
    shown = url.removeprefix(origin)
    return {"words": call.words, "path": shown, "curl": curl(url), "python": python(url)}


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
