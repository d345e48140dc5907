"""Servers of OpenEnv in a distribution: FastAPI applications with a websocket `/ws`, which its console scripts, its
`openenv.yaml` or an entry name, and classes of environments, which become such applications.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, get_type_hints

from .finding import installed, modules_of, named_by, normal
from .jobs import Job
from .shapes import ProgramFault

LIBRARY = "openenv"
DISTRIBUTIONS = ("openenv", "openenv-core")
"""Names under which the library is published."""
SESSIONS, SCHEMA = "/ws", "/schema"
MANIFEST = "openenv.yaml"
APP = "app"
USUAL = ("server", APP)
"""Parts of a module's name that say nothing of the environment."""


def uses_library(job: Job) -> bool:
    """Tell whether a distribution stands beside the library, and is another one."""
    return installed(LIBRARY) and normal(job.distribution) not in DISTRIBUTIONS


@dataclass(frozen=True)
class FoundServer:
    """An application, and the server of OpenEnv behind it where it can be had."""

    entry: str
    app: Any
    server: Any

    @property
    def factory(self) -> Any:
        """Return what makes an environment for each session; None where that is not known."""
        return getattr(self.server, "_env_factory", None)

    @property
    def action(self) -> Any:
        """Return the model of its actions; None where that is not known."""
        return getattr(self.server, "action_cls", None)

    @property
    def name(self) -> str:
        """Return what it calls itself, else what its module is called: older versions keep no name."""
        module = self.entry.partition(":")[0]
        parts = [part for part in module.split(".") if part not in USUAL]
        return str(getattr(self.server, "env_name", "") or ".".join(parts) or module)


class NoServer(LookupError):
    """What an entry names is something else."""


def found_at(entry: str) -> FoundServer:
    """Return the server that an entry names. Raises NoServer, ProgramFault, and whatever importing it raises."""
    named = named_by(entry)
    if isinstance(named, type):
        named = _served(named)
    if (routes := _routes(named)) is None:
        raise NoServer(f"{entry} is neither an application with a websocket {SESSIONS} nor a class of an environment")
    if SESSIONS not in routes or SCHEMA not in routes:
        raise ProgramFault(f"its server has no websocket {SESSIONS} and {SCHEMA}: openenv-core 0.2 or newer has both")
    inner = inspect.getclosurevars(routes[SESSIONS]).nonlocals if inspect.isfunction(routes[SESSIONS]) else {}
    return FoundServer(entry, named, inner.get("self"))


def _routes(thing: Any) -> dict[str, Any] | None:
    """Return what answers at each path; None for what is no application."""
    routes = getattr(thing, "routes", None)
    if not callable(thing) or not isinstance(routes, list):
        return None
    return {str(getattr(one, "path", "")): getattr(one, "endpoint", None) for one in routes}


def _served(kind: type) -> Any:
    """Return a class of an environment as the application that its library makes of it. Raises ProgramFault; other
    classes are returned as they are."""
    if not issubclass(kind, import_module(f"{LIBRARY}.core.env_server.interfaces").Environment):
        return kind
    step: Any = vars(kind).get("step")
    if step is None:
        raise ProgramFault(f"{kind.__name__} has no step of its own: name its app")
    hints = get_type_hints(step)
    taken = [name for name in inspect.signature(step).parameters if name != "self"]
    action, seen = hints.get(taken[0]) if taken else None, hints.get("return")
    if not isinstance(action, type) or not isinstance(seen, type):
        raise ProgramFault(f"{kind.__name__}.step does not say which action it takes and what it returns: name its app")
    make = import_module(f"{LIBRARY}.core.env_server.http_server").create_fastapi_app
    return make(kind, action, seen, env_name=kind.__name__)


def servers_in(job: Job) -> tuple[list[FoundServer], list[tuple[str, str]]]:
    """Return the servers of a distribution, or the one that was named; and what cannot be used, and why."""
    found: list[FoundServer] = []
    broken: list[tuple[str, str]] = []
    for entry, sure in _entries(job):
        try:
            one = found_at(entry)
        except NoServer:
            continue  # an application of another kind, or whatever else was named
        except ProgramFault as fault:
            broken.append((entry, str(fault)))
            continue
        except Exception as error:  # foreign code: what cannot be imported is left out with the reason
            if sure or not isinstance(error, AttributeError):
                broken.append((entry, f"{type(error).__name__}: {error}"))
            continue
        if all(one.app is not other.app for other in found):
            found.append(one)
    return found, broken


def _entries(job: Job) -> Iterator[tuple[str, bool]]:
    """Yield what may name a server, and whether it was said that it does."""
    if job.entry:
        yield job.entry, True
        return
    seen = set()
    for entry, sure in (*_declared(job), *_scripts(job), *_usual(job)):
        if entry not in seen:
            seen.add(entry)
            yield entry, sure


def _declared(job: Job) -> Iterator[tuple[str, bool]]:
    """Yield what the manifests in its packages say."""
    for top in modules_of(job):
        folder = _folder(top)
        file = folder / MANIFEST if folder is not None else None
        if file is not None and file.is_file():
            said = re.search(r"(?m)^app:\s*[\"']?([\w.]+:\w+)", file.read_text(errors="replace"))
            if said is not None:
                yield f"{top}.{said.group(1).removeprefix(f'{top}.')}", True


def _folder(module: str) -> Path | None:
    found = import_module("importlib.util").find_spec(module)
    return Path(found.origin).parent if found is not None and found.origin else None


def _scripts(job: Job) -> Iterator[tuple[str, bool]]:
    """Yield the applications beside the functions that its console scripts call."""
    try:
        points: tuple[EntryPoint, ...] = tuple(distribution(job.distribution).entry_points)
    except PackageNotFoundError:
        return
    for one in points:
        if one.group == "console_scripts":
            yield f"{one.value.partition(':')[0].strip()}:{APP}", False


def _usual(job: Job) -> Iterator[tuple[str, bool]]:
    for top in modules_of(job):
        module = f"{top}.server.{APP}"
        if (folder := _folder(top)) is not None and (folder / "server" / f"{APP}.py").is_file():
            yield f"{module}:{APP}", True
