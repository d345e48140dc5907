"""Which servers of the Model Context Protocol a distribution has, and which tools these list."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from typing import Any

from .finding import named_by, normal
from .jobs import Job
from .openenv_apps import uses_library
from .rpc import NoAnswer, RequestRefused, ServerBroke, ServerProcess

BOOT_S = 60.0
"""A server that is asked for its tools begins and lists them within twice this."""
MOST_SERVERS = 16
_SPEAKS = re.compile(r"(^|-)(fast)?mcp(-|$)")
"""Names of distributions of the protocol's servers, and of libraries that these are written with."""


@dataclass(frozen=True)
class ListedServer:
    """A server of a package, as its manifest names it."""

    name: str
    entry: str
    title: str
    tools: tuple[dict[str, Any], ...]
    """Name, description and JSON Schema of the arguments of each."""


def servers_of(job: Job) -> tuple[list[ListedServer], list[tuple[str, str]]]:
    """Start what may be a server, and return those that list tools; and what does not, and why."""
    found: list[ListedServer] = []
    silent: list[tuple[str, str]] = []
    for name, entry in _candidates(job):
        try:
            found.append(_asked(name, entry))
        except NoAnswer:
            silent.append((name, f"it did not list its tools within {BOOT_S:g} s"))
        except (ServerBroke, RequestRefused) as broke:
            silent.append((name, str(broke)))
        except Exception as error:  # foreign code: what cannot be imported is left out with the reason
            silent.append((name, f"{type(error).__name__}: {error}"))
    return found, silent


def _candidates(job: Job) -> Iterator[tuple[str, str]]:
    """Yield console scripts of a distribution that speaks the protocol, or the function that was named."""
    if uses_library(job):  # its scripts are servers of OpenEnv, whose tools come with an environment
        return
    if job.entry:
        if _is_program(job.entry):
            yield job.entry, job.entry
        return
    try:
        asked = distribution(job.distribution)
    except PackageNotFoundError:
        return
    needs = [re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0] for one in asked.requires or ()]
    if not any(_SPEAKS.search(normal(one)) for one in (job.distribution, *needs)):
        return
    scripts: Sequence[EntryPoint] = [one for one in asked.entry_points if one.group == "console_scripts"]
    for script in scripts[:MOST_SERVERS]:
        yield script.name, script.value.partition("[")[0].strip()


def _is_program(entry: str) -> bool:
    """Tell whether an entry names a function that can be called as a program is."""
    try:
        named = named_by(entry)
        needed = [one for one in inspect.signature(named).parameters.values() if one.default is one.empty]
    except Exception:  # foreign code: adapters of environments say what is wrong with it
        return False
    return inspect.isfunction(named) and all(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in needed)


def _asked(name: str, entry: str) -> ListedServer:
    server = ServerProcess(program(entry), [name])
    try:
        server.open(BOOT_S)
        tools = server.tools(BOOT_S)
    finally:
        server.close()
    return ListedServer(name, entry, server.title or name, tuple(map(tool_of, tools)))


def tool_of(listed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool that a server lists as manifests have it."""
    schema = listed.get("inputSchema")
    return {
        "name": str(listed.get("name", "")),
        "description": str(listed.get("description") or ""),
        "parameters": schema if isinstance(schema, dict) else {"type": "object"},
    }


def program(entry: str) -> Callable[[], object]:
    """Return what an entry names, imported. Raises whatever importing it raises."""
    found: Callable[[], object] = named_by(entry)
    return found


def served(one: ListedServer) -> dict[str, Any]:
    """Return a server as it stands in a manifest."""
    return asdict(one)
