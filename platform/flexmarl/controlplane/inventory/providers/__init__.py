"""Providers of hosts: what each of them would be asked for, and how it is asked."""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.providers import PoolProvider, SlurmProvider, StaticProvider
from flexmarl.controlplane.inventory.providers.base import (
    HostProvider,
    HostRequest,
    HostSighting,
    HostSubmission,
    ProviderRefused,
    ProviderSilent,
)
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
]


def options_of(kept: Mapping[str, Any]) -> StaticProvider | SlurmProvider:
    """Return a pool's options as they were kept."""
    return PoolProvider.model_validate({"provider": dict(kept) or {"type": "static"}}).provider


def provider_of(kind: str) -> HostProvider:
    """Return the provider of a name. Raises KeyError for one whose hosts people start themselves."""
    return {"slurm": Slurm()}[kind]
