"""Which servers of tools a specification names: found with the rights of whoever submits, pinned by digest with the
tools that agents are shown, without any of their code."""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.specification.tools import WHERE
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.packages import queries
from flexmarl.controlplane.packages.models import Package
from flexmarl.controlplane.packages.naming import SHOWN, chosen_offer, found_package

BY_URL = "mcp_url"
"""Servers that are no packages: what they offer is pinned by the worker that asks them first."""


def tools_in(environment: object) -> list[Mapping[str, Any]] | None:
    """Return the servers of an environment when it names them well enough to look for them; types refuse the rest."""
    tools = environment.get("tools") if isinstance(environment, Mapping) else None
    servers = tools.get("servers") if isinstance(tools, Mapping) else None
    if not isinstance(servers, list) or not servers or not all(map(_named, servers)):
        return None
    return servers


def _named(server: object) -> bool:
    if not isinstance(server, Mapping):
        return False
    if server.get("type") == BY_URL:
        return True
    if server.get("type", "mcp") != "mcp":
        return False
    texts = [server.get("package"), server.get("server", "")]
    only = server.get("only", [])
    if isinstance(only, list):
        texts += only
    return isinstance(only, list) and all(isinstance(text, str) and "\0" not in text for text in texts)


def pinned_servers(
    actor: Actor, project: str, servers: list[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Return servers with the builds and tools that they name, and all refusals.

    A package of a project that the submitter may not read is refused as if it did not exist.
    """
    found: list[dict[str, Any]] = []
    refused: list[Problem] = []
    for place, named in enumerate(servers):
        if named.get("type") == BY_URL:
            found.append(dict(named))
            continue
        server = _pinned(actor, project, named, f"{WHERE}/{place}")
        if isinstance(server, list):
            refused += server
        else:
            found.append(server)
    return found, refused


def _pinned(actor: Actor, project: str, named: Mapping[str, Any], where: str) -> dict[str, Any] | list[Problem]:
    package = found_package(actor, project, named.get("package", ""), f"{where}/package")
    if isinstance(package, Problem):
        return [package]
    offers = {one["name"]: one for one in package.manifest.get("servers", ())}
    if not offers:
        return [_without_tools(actor, project, package, where)]
    chosen = chosen_offer(package, offers, named.get("server", ""), "server", where)
    if isinstance(chosen, Problem):
        return [chosen]
    name, offer = chosen
    tools = {tool["name"]: tool for tool in offer["tools"]}
    only = named.get("only") or list(tools)
    if unknown := [place for place, tool in enumerate(only) if tool not in tools]:
        return [_unknown_tool(only[place], name, tools, f"{where}/only/{place}") for place in unknown]
    shown = [tool for tool_name, tool in tools.items() if tool_name in only]
    pin = {"id": str(package.id), "digest": package.digest, "entry": offer["entry"], "tools": shown}
    return {**named, "server": name, "pinned": pin}


def _without_tools(actor: Actor, project: str, package: Package, where: str) -> Problem:
    rows = queries.usable(actor).filter(project=project, manifest__servers__0__isnull=False)
    others = [str(one) for one in rows.only("name", "release")[:SHOWN]]
    hint = f"Packages with servers: {', '.join(others)}." if others else "Build one, such as mcp-server-time."
    detail = f"{package} has no server that speaks the Model Context Protocol."
    return Problem(pointer=f"{where}/package", code="no_tools", detail=detail, hint=hint)


def _unknown_tool(tool: str, server: str, tools: Mapping[str, Any], where: str) -> Problem:
    close = nearest(tool, tools)
    hint = f"Did you mean {close}?" if close else f"It has {', '.join(list(tools)[:SHOWN])}."
    return Problem(pointer=where, code="unknown_tool", detail=f"{server} has no tool {tool}.", hint=hint)
