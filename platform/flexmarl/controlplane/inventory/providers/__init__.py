"""Providers of hosts: what each of them would be asked for, and how it is asked."""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.providers import PoolProvider, ProviderOptions
from flexmarl.controlplane.inventory.providers.base import (
    HostProvider,
    HostRequest,
    HostSighting,
    HostSubmission,
    ProviderRefused,
    ProviderSilent,
)
from flexmarl.controlplane.inventory.providers.kubernetes_hosts import Kubernetes
from flexmarl.controlplane.inventory.providers.ray_hosts import Ray
from flexmarl.controlplane.inventory.providers.slurm import Slurm

__all__ = [
    "HostProvider",
    "HostRequest",
    "HostSighting",
    "HostSubmission",
    "ProviderRefused",
    "ProviderSilent",
    "options_of",
    "provider_of",
    "source_of",
]


def options_of(kept: Mapping[str, Any]) -> ProviderOptions:
    """Return a pool's options as they were kept."""
    return PoolProvider.model_validate({"provider": dict(kept) or {"type": "static"}}).provider


def provider_of(options: Mapping[str, Any]) -> HostProvider:
    """Return who is asked for hosts with a pool's options. Raises KeyError where people start them themselves."""
    if options["type"] == "ray":
        return Ray(options["address"])
    if options["type"] == "kubernetes":
        return Kubernetes(options["context"], options["namespace"])
    return {"slurm": Slurm()}[options["type"]]


def source_of(options: Mapping[str, Any]) -> str:
    """Return the name of the cluster that is asked: what one cluster does not answer says nothing of another."""
    where = [str(options[name]) for name in ("address", "context", "namespace") if options.get(name)]
    return " ".join([str(options["type"]), *where])
