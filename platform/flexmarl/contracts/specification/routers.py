"""Routers: which of the engines that hold a turn's weights serves it. Code: `flexmarl.algorithms.routing`."""

from typing import ClassVar, Literal

from flexmarl.contracts.plugins import Kind, PluginOptions


class RouterOptions(PluginOptions):
    """Which of the engines that hold a turn's weights serves it."""

    reads_lengths: ClassVar[bool] = False
    """Whether it goes by how long replies are expected to be."""


class LeastLoadedOptions(RouterOptions):
    """The engine with the fewest requests."""

    type: Literal["least_loaded"] = "least_loaded"


class PrefixAffinityOptions(RouterOptions):
    """The engine that has the prompt's prefix cached, unless it is overloaded."""

    type: Literal["prefix_affinity"] = "prefix_affinity"


class LengthAwareOptions(RouterOptions):
    """The engine with the fewest tokens to generate; for long replies the one with the fewest requests."""

    type: Literal["length_aware"] = "length_aware"

    reads_lengths: ClassVar[bool] = True


class SkewAwareOptions(RouterOptions):
    """As `length_aware`, with engines reserved for long replies, longest first."""

    type: Literal["skew_aware"] = "skew_aware"

    reads_lengths: ClassVar[bool] = True


class HardwareClassOptions(RouterOptions):
    """An engine whose device class suits prompt and reply length, unless it is overloaded."""

    type: Literal["hardware_class"] = "hardware_class"

    reads_lengths: ClassVar[bool] = True


class VersionAwareOptions(RouterOptions):
    """An engine whose newest version is the one that is asked for."""

    type: Literal["version_aware"] = "version_aware"


ROUTER: Kind[RouterOptions] = Kind(
    "router",
    "/mechanisms/router",
    RouterOptions,
    (
        LeastLoadedOptions,
        PrefixAffinityOptions,
        LengthAwareOptions,
        SkewAwareOptions,
        HardwareClassOptions,
        VersionAwareOptions,
    ),
)
