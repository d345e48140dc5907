"""What pages say of a package: rows, phases of its build, why one failed, what to do. Pure: values in, values out."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

SOURCES = {"requirement": "Index", "upload": "Upload"}
PHASES = (
    ("making an environment", "Environment", "A virtual environment is created."),
    ("installing", "Install", "The package and what it needs are installed, and their digests recorded."),
    ("looking for environments", "Look", "Its own interpreter lists its environments, without network or credentials."),
)
"""What the build is doing -> its word, and what it means."""
LOST = "Retry; if it happens again, check the node's log."
REASONS = {
    "not_found": ("Not in the index", "Correct the name and version, or upload its wheel."),
    "index_unreachable": ("Package index unreachable", "Check the node's connection to the package index, then retry."),
    "install_failed": ("Installation failed", "See the log below; a wheel with fewer dependencies may help."),
    "not_understood": (
        "Unsupported library version",
        "Choose a release for a supported version, or make it an agent program.",
    ),
    "venv_failed": ("No virtual environment", "Check the node's Python: it needs venv and ensurepip."),
    "other_files": ("Files changed", "The index or the upload changed; build a new version."),
    "other_build": ("Build differs", "The host has another platform or Python version; build it again there."),
    "no_environments": (
        "No environment, program or server found",
        "Name a class, a program or a server as an entry, such as my_package.games:Maze.",
    ),
    "manifest_failed": ("Interpreter exited", "See the end of the log below."),
    "manifest_time_limit": ("Manifest timed out", "Its modules must import within minutes."),
    "file_gone": ("File missing", "Upload it again."),
    "out_of_memory": ("Out of memory", "Build it on a node with more free memory."),
    "time_limit": ("Timed out", "Upload wheels instead of sources, which have to be compiled."),
    "disk": ("Disk error", "Free space below the home of that node, and retry."),
    "gave_up": ("Abandoned", LOST),
    "fault": ("Build error", LOST),
}
"""Code of a failed build -> what it is called, and what to do."""
STATUS = {"building": "running", "ready": "done"}
"""States that have another word among those of all work."""
MOST_SHOWN = 300
WITH_TOOLS = "chat_dataset"
"""Template of a run whose agents may call tools."""


def row(package: Mapping[str, Any]) -> dict[str, Any]:
    """Return a package as lists and headers show it."""
    state = package["state"]
    open_ = package["finished_at"] is None
    source = package["source"]
    return {
        **package,
        "pill": {"status": STATUS.get(state, state), "reason_text": package["reason_text"]},
        "open": open_,
        "ready": state == "ready",
        "source_word": SOURCES[source["type"]],
        "source_text": source.get("requirement") or source.get("file", ""),
        "now_word": next((word for name, word, _ in PHASES if name == package["now"]), "") if open_ else "",
        "web_url": f"/packages/{package['id']}",
    }


def phases(package: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the phases of a build: done, now or to come."""
    names = [name for name, _, _ in PHASES]
    at = names.index(package["now"]) if package["now"] in names else -1
    return [
        {"word": word, "means": means, "state": "done" if place < at else "now" if place == at else "next"}
        for place, (_, word, means) in enumerate(PHASES)
    ]


def trouble(package: Mapping[str, Any]) -> dict[str, str]:
    """Return why a build failed, and what to do."""
    title, following = REASONS.get(package["reason"], ("Failed", LOST))
    return {"title": title, "next": following}


def environments(package: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a package offers, each with the page on which a run of it begins."""
    return [
        {
            **one,
            "settings": ", ".join(one["options"].get("properties", {})),
            "new_run_url": f"/runs/new?{urlencode({'package': package['id'], 'environment': one['name']})}",
        }
        for one in package["manifest"].get("environments", ())[:MOST_SHOWN]
    ]


def programs(package: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the agent programs that a package offers, each with the page on which a run of it begins."""
    return [
        {
            **one,
            "settings": ", ".join(one["options"].get("properties", {})),
            "kind": _kind(one),
            "new_run_url": f"/runs/new?{urlencode({'package': package['id'], 'program': one['name']})}",
        }
        for one in package["manifest"].get("programs", ())[:MOST_SHOWN]
    ]


def _kind(program: Mapping[str, Any]) -> str:
    """Return of which library a program is an environment, and how many rows it has; empty: it is a function."""
    if not (library := program.get("adapter")):
        return ""
    rows = f": {program['tasks']:,} rows to train on, {program['held_out']:,} held out" if program.get("tasks") else ""
    return f"Environment of {library}{rows}"


def commands(package: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the commands of a package, each with the page on which a run of it begins."""
    return [
        {**one, "new_run_url": f"/runs/new?{urlencode({'package': package['id'], 'command': one['name']})}"}
        for one in package["manifest"].get("commands", ())
    ]


def servers(package: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the servers of tools of a package, each with the page on which a run with it begins."""
    named = json.dumps(f"{package['name']}@{package['release']}")
    found = []
    for one in package["manifest"].get("servers", ()):
        asked = {"template": WITH_TOOLS, "tools": package["id"], "server": one["name"]}
        written = f"{{type: mcp, package: {named}, server: {json.dumps(one['name'])}}}"
        found.append(
            {
                **one,
                "tools": [{**tool, "takes": _takes(tool["parameters"])} for tool in one["tools"]],
                "naming": f"tools: {{servers: [{written}]}}",
                "new_run_url": f"/runs/new?{urlencode(asked)}",
            }
        )
    return found


def _takes(schema: Mapping[str, Any]) -> str:
    """Return the arguments of a tool; those that may be absent end in a question mark."""
    properties, needed = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return ""
    required = [name for name in needed if name in properties] if isinstance(needed, list) else []
    return ", ".join([*required, *(f"{name}?" for name in sorted(properties) if name not in required)])


def naming(package: Mapping[str, Any]) -> str:
    """Return how a specification names its first environment, program or command."""
    named = f"package: {json.dumps(package['name'] + '@' + package['release'])}"
    if offers := package["manifest"].get("environments", ()):
        return f"environment: {{type: package, {named}, environment: {json.dumps(offers[0]['name'])}}}"
    if not package["manifest"].get("programs") and (offers := package["manifest"].get("commands", ())):
        command = f"[{json.dumps(offers[0]['name'])}]"
        return f"environment: {{type: program, runner: {{type: command, {named}, command: {command}}}}}"
    program = next((json.dumps(one["name"]) for one in package["manifest"].get("programs", ())), "NAME")
    return f"environment: {{type: program, runner: {{type: process, {named}, program: {program}}}}}"
