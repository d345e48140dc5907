"""Plug-ins by kind: the options that the specification offers, built-in ones and those of installed distributions.

Invariants: a name means one plug-in of its kind in a process, and a built-in name cannot be taken; every option class
says its name in `type`; the offer is made once, when the specification's classes are, so it is that of the
distributions that were installed when the process started. A plug-in that cannot be loaded is left out and named in
`broken_plugins`, never raised: somebody else's mistake must not keep the service from starting.

A distribution adds a plug-in by an entry point of the group `flexmarl.<kind>`: its name is the plug-in's, its value the
class of its options, which names its code. So whoever only lists and checks settings never imports the code; and since
options are loaded while the specification's classes are made, their module imports nothing but `flexmarl.contracts`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from flexmarl.contracts.base import Strict

if TYPE_CHECKING:
    from flexmarl.contracts.problems import Problem
    from flexmarl.contracts.specification.experiment import ExperimentSpec


class Readiness(StrEnum):
    """What must be complete before a plug-in can do its part, finest first."""

    ROW = "row"
    EPISODE = "episode"
    GROUP = "group"
    BATCH = "batch"

    @property
    def coarseness(self) -> int:
        """Return its place in the order of the members."""
        return list(Readiness).index(self)


class PluginOptions(Strict):
    """The settings of one plug-in, whose name is the default of its field `type`. The docstring says what it does."""

    type: str

    implementation: ClassVar[str] = ""
    """Where the code of a plug-in of another distribution is: `package.module:Class`."""
    bias: ClassVar[str] = ""
    """What a gradient is of instead of the plain one's expectation, in a sentence; empty: it changes no expectation."""

    @classmethod
    def plugin_name(cls) -> str:
        """Return the name that `type` has to have."""
        return str(cls.model_fields["type"].default)

    @classmethod
    def summary(cls) -> str:
        """Return what the plug-in does, in a line."""
        return " ".join((cls.__doc__ or "").partition("\n\n")[0].split())

    @classmethod
    def check(cls) -> None:
        """Raise where the options of another distribution cannot be used, whatever a specification says."""

    def refusals(self, spec: "ExperimentSpec") -> "Iterator[Problem]":
        """Return what these settings cannot be combined with in a specification."""
        yield from ()


Options = TypeVar("Options", bound=PluginOptions)


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """An entry point that offers nothing, and why."""

    kind: str
    name: str
    distribution: str
    reason: str


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plug-in of another distribution."""

    options: type[PluginOptions]
    distribution: str
    version: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a plug-in without running it."""

    kind: str
    name: str
    summary: str
    options: dict[str, Any]
    """JSON Schema of its settings."""
    distribution: str
    """Where it comes from; empty: built in."""
    version: str
    bias: str = ""
    """What it changes of the expectation of a gradient; empty: nothing that it declares."""


@dataclass(frozen=True)
class Kind(Generic[Options]):
    """A kind of plug-in. The docstring of its base says what it decides; the first built-in one is the default."""

    name: str
    pointer: str
    """Where a specification names one."""
    base: type[Options]
    builtins: tuple[type[Options], ...]
    foreign_base: type[Options] | None = None
    """What the options of other distributions derive from, where that is not the base."""

    def variants(self) -> Mapping[str, type[Options]]:
        """Return the options by name: built-in ones in their order, then installed ones by name."""
        own = {options.plugin_name(): options for options in self.builtins}
        return own | {name: cast("type[Options]", plugin.options) for name, plugin in self.installed().items()}

    def installed(self) -> Mapping[str, InstalledPlugin]:
        """Return the plug-ins of other distributions, by name."""
        return _discovered(self)[0]

    def broken(self) -> tuple[BrokenPlugin, ...]:
        """Return the entry points of this kind that offer nothing."""
        return _discovered(self)[1]

    def options(self, name: str | None = None, /, **settings: Any) -> Options:
        """Return checked options of a plug-in, of the default one without a name.

        Raises LookupError for an unknown name, ValidationError for a wrong setting.
        """
        named = name or settings.pop("type", None)
        found = self.builtins[0] if named is None else self.variants().get(named)
        if found is None:
            raise LookupError(f"no {self.name} named {named!r}; available: {', '.join(self.variants())}")
        return found(**settings)

    def manifests(self) -> tuple[Manifest, ...]:
        """Describe every plug-in of this kind."""
        return tuple(self._manifest(name, options) for name, options in self.variants().items())

    def _manifest(self, name: str, options: type[Options]) -> Manifest:
        plugin = self.installed().get(name)
        source = (plugin.distribution, plugin.version) if plugin else ("", "")
        return Manifest(self.name, name, options.summary(), options.model_json_schema(), *source, options.bias)

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotates a field whose value is the options of one plug-in of a kind. A word is a type."""

    kind: Kind[Any]
    default: bool = True
    """Whether the type may be left out."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {name: handler.generate_schema(options) for name, options in self.kind.variants().items()}
        tagged = core_schema.tagged_union_schema(choices, discriminator="type")
        return core_schema.no_info_before_validator_function(self._typed, tagged)

    def _typed(self, value: object) -> object:
        given = {"type": value} if isinstance(value, str) else value
        if not isinstance(given, Mapping):
            return given
        name = given.get("type")
        for plugin in self.kind.broken():
            if plugin.name == name and name not in self.kind.variants():
                rule = f"{name} of {plugin.distribution} cannot be loaded: {plugin.reason}"
                raise PydanticCustomError("broken_at", "{rule}", {"rule": rule, "below": "/type"})
        if "type" in given or not self.default:
            return given
        return {"type": self.kind.builtins[0].plugin_name(), **given}


@cache
def _discovered(kind: Kind[Any]) -> tuple[dict[str, InstalledPlugin], tuple[BrokenPlugin, ...]]:
    return discover(kind, _offered().select(group=f"flexmarl.{kind.name}"))


@cache
def _offered() -> EntryPoints:
    """Read the entry points of all distributions, once for all kinds: every process does so when it starts."""
    return cast("EntryPoints", entry_points())  # up to Python 3.11 another type, which selects in the same way


def discover(
    kind: Kind[Any], points: Iterable[EntryPoint]
) -> tuple[dict[str, InstalledPlugin], tuple[BrokenPlugin, ...]]:
    """Load entry points; returns the plug-ins that can be used by name, and those that cannot."""
    found: dict[str, InstalledPlugin] = {}
    broken = []
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        distribution = point.dist.metadata["Name"] if point.dist else "an unknown distribution"
        taken = found[point.name].distribution if point.name in found else None
        if point.name in {options.plugin_name() for options in kind.builtins}:
            taken = "flexmarl"
        try:
            options = point.load()
            reason = f"the name is taken by {taken}" if taken else _fault(kind, point.name, options)
        except Exception as error:  # whatever foreign code raises while it is imported
            reason = f"{type(error).__name__}: {error}"
        if reason:
            broken.append(BrokenPlugin(kind.name, point.name, distribution, reason))
        else:
            version = point.dist.version if point.dist else ""
            found[point.name] = InstalledPlugin(options, distribution, version)
    return found, tuple(broken)


def _fault(kind: Kind[Any], name: str, options: object) -> str:
    """Return what keeps an object from being the options of a plug-in; empty: nothing."""
    base = kind.foreign_base or kind.base
    if not isinstance(options, type) or not issubclass(options, PluginOptions) or not issubclass(options, base):
        return f"it must derive from {base.__name__}"
    if options.plugin_name() != name:
        return f"its type is {options.plugin_name()!r}, and its entry point is named {name!r}"
    if not re.fullmatch(r"[\w.]+:\w+", options.implementation):
        return f"implementation is {options.implementation!r}; write it like package.module:Class"
    options.check()
    return ""
