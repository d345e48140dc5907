"""Names of plug-ins: an explicit dict of built-ins per kind, entry points for others, duplicates raise."""

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

Plugin = TypeVar("Plugin")


class Registry(Generic[Plugin]):
    """The plug-ins of one kind by name. A name means one thing in a process: adding it again raises."""

    def __init__(self, kind: str, builtins: Mapping[str, Plugin]) -> None:
        self.kind = kind
        self._plugins: dict[str, Plugin] = dict(builtins)

    def get(self, name: str) -> Plugin:
        """Return a plug-in. Raises LookupError naming the legal names."""
        try:
            return self._plugins[name]
        except KeyError:
            raise LookupError(f"no {self.kind} named {name!r}; available: {', '.join(self.names())}") from None

    def names(self) -> tuple[str, ...]:
        """List the names, sorted."""
        return tuple(sorted(self._plugins))

    def add(self, name: str, plugin: Plugin) -> None:
        """Register a plug-in. Raises ValueError when the name is taken."""
        if name in self._plugins:
            raise ValueError(f"{self.kind} {name!r} is registered already")
        self._plugins[name] = plugin

    def load(self, points: Iterable[EntryPoint]) -> tuple[str, ...]:
        """Add the plug-ins behind entry points and return their names."""
        added = []
        for point in points:
            self.add(point.name, point.load())
            added.append(point.name)
        return tuple(added)

    def discover(self) -> tuple[str, ...]:
        """Add the plug-ins that installed distributions declare under `flexmarl.<kind>`."""
        return self.load(entry_points(group=f"flexmarl.{self.kind}"))
