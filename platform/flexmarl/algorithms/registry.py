"""The code of plug-ins by name: built-in classes of a kind, and those that installed distributions add.

Invariant (tested): the names of a registry are those of its kind's options, so that what a specification may say is
what a process can make.
"""

import pkgutil
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

from flexmarl.contracts.plugins import Kind, PluginOptions

Settings = TypeVar("Settings", bound=PluginOptions)
Made = TypeVar("Made", bound="Plugin[Any]")


class Plugin(Generic[Settings]):
    """A plug-in with its settings."""

    Options: ClassVar[type[PluginOptions]]
    """Of a built-in one: those that name it."""

    def __init__(self, options: Settings) -> None:
        self.options = options


class Registry(Generic[Made]):
    """The plug-ins of one kind by name."""

    def __init__(self, kind: Kind[Any], builtins: Iterable[type[Made]]) -> None:
        self.kind = kind
        self._builtins: dict[str, type[Made]] = {one.Options.plugin_name(): one for one in builtins}

    def get(self, name: str) -> type[Made]:
        """Return the class of a plug-in. Raises LookupError naming the legal names; ImportError, AttributeError
        for one of another distribution whose code is not where its options say."""
        if name in self._builtins:
            return self._builtins[name]
        if name in self.kind.installed():
            # Loaded where it is used: it imports the module that this registry stands in.
            found: type[Made] = pkgutil.resolve_name(self.kind.installed()[name].options.implementation)
            return found
        raise LookupError(f"no {self.kind.name} named {name!r}; available: {', '.join(self.names())}")

    def make(self, options: PluginOptions) -> Made:
        """Make the plug-in that some options name. Raises LookupError when this process has none of that name."""
        return self.get(options.type)(options)

    def names(self) -> tuple[str, ...]:
        """List the names: built-in ones in their order, then the others."""
        return (*self._builtins, *self.kind.installed())
